"""Which Metric rows the pages show: keys of training.metrics.DEFINITIONS, grouped into charts.

Holds: a chart's series exist under exactly one of the listed keys; what a run did not record is left out, visibly.
"""

from dataclasses import dataclass

REWARD = "reward/mean"
PASS_RATE = "reward/pass_rate"
NO_SIGNAL = "groups/no_signal_share"
STALENESS = "staleness/max"
TOKENS_PER_S = "tokens/per_s"


@dataclass(frozen=True, kw_only=True)
class Series:
    key: str
    name: str
    band: bool = False
    """Drawn thin: an extreme beside the mean."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    id: str
    title: str
    meaning: str
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = False
    kind: str = "policy"


CHARTS: tuple[Chart, ...] = (
    Chart(
        id="reward",
        title="Reward",
        meaning="Mean reward of the rollouts a step trained on, as judged; and the share that passed.",
        series=(Series(key=REWARD, name="mean"), Series(key=PASS_RATE, name="pass rate", band=True)),
    ),
    Chart(
        id="lengths",
        title="Sampled tokens of a rollout",
        meaning="How many tokens the model sampled in a rollout: mean and longest of a step.",
        series=(
            Series(key="lengths/sampled_mean", name="mean"),
            Series(key="lengths/sampled_max", name="longest", band=True),
        ),
        unit="tokens",
    ),
    Chart(
        id="entropy",
        title="Entropy",
        meaning="Mean entropy of the policy at its trained tokens, in nats. Falling to 0: the policy has collapsed.",
        series=(Series(key="entropy", name="entropy"),),
        unit="nats",
    ),
    Chart(
        id="mismatch",
        title="Trainer against engine",
        meaning="Absolute difference of the trainer's and the engine's logprobs of the same tokens under the same"
        " weights. Small and flat is healthy.",
        series=(Series(key="mismatch/mean", name="mean"), Series(key="mismatch/max", name="largest", band=True)),
        unit="nats",
    ),
    Chart(
        id="ratio",
        title="Importance ratio",
        meaning="Probability under the weights in training over that at sampling. 1: on policy.",
        series=(Series(key="ratio/mean", name="mean"), Series(key="ratio/max", name="largest", band=True)),
    ),
    Chart(
        id="staleness",
        title="Staleness",
        meaning="Version in training minus the oldest version that sampled a token of the rollout.",
        series=(Series(key="staleness/mean", name="mean"), Series(key=STALENESS, name="oldest", band=True)),
        unit="versions",
    ),
    Chart(
        id="seconds",
        title="Seconds by phase",
        meaning="Where the wall time of each step went.",
        series=(
            Series(key="seconds/generate", name="generate"),
            Series(key="seconds/train", name="train"),
            Series(key="seconds/publish", name="publish"),
        ),
        unit="s",
        stacked=True,
    ),
    Chart(
        id="signal",
        title="Groups without signal",
        meaning="Share of a step's groups whose rewards are all equal: every member's advantage is 0.",
        series=(Series(key=NO_SIGNAL, name="share"),),
    ),
)
