"""What the kinds of run have in common and where they differ, in one place.

    rl           demonstrations? -> warm start -> version 0 -> groups, steps, versions -> evaluation
    supervised   a data set of rollouts -> supervised steps -> version 0 -> evaluation
    preference   a data set of judged pairs -> DPO steps -> version 0 -> evaluation
    evaluation   version 0 is the model, or the version, that is measured; nothing is trained

From:  RunConfig.kind.
To:    training.scheduling and training.trainer_process, which ask here instead of comparing names.
Holds: a kind without an online phase is an attempt whose number of policy steps is 0; nothing else is special.
"""

from training.config import RunConfig

WORDS = {
    "rl": "reinforcement learning",
    "evaluation": "evaluation",
    "supervised": "supervised",
    "preference": "preference (DPO)",
}


def has_online_phase(config: RunConfig) -> bool:
    return config.kind == "rl"


def trains_before_serving(config: RunConfig) -> bool:
    """Whether a trainer makes version 0; else it is what the attempt starts from, as it is."""
    return config.kind != "evaluation"


def metric_kind(config: RunConfig) -> str:
    """Metric.kind of the steps before version 0."""
    return "preference" if config.kind == "preference" else "supervised"


def scheduled_config(config: RunConfig) -> RunConfig:
    """The config as the controller and the trainer count by: without an online phase there are 0 policy steps."""
    if has_online_phase(config):
        return config
    optimization = config.optimization.model_copy(update={"steps": 0})
    return config.model_copy(update={"optimization": optimization})
