"""A rough forecast of a run, before it starts: hours, tokens, memory, and what looks unwise.

Speeds are those of the attempts that this installation has run with the same model (their Metric rows) where there
are any, else the ones measured for a 135M-parameter model on two CPU cores (docs/log.md), scaled by parameters.
It errs by a factor of two easily, and says so.
"""

import os
from typing import Any

from django.db.models import Avg

from environments.models import Model, Task
from training.config import RunConfig
from training.kinds import has_online_phase, scheduled_config
from training.models import Dataset, Metric

CPU_PARAMETERS = 135e6
CPU_GENERATED_TOKENS_PER_S = 170.0
CPU_TRAINED_TOKENS_PER_S = 220.0
CPU_STEP_OVERHEAD_S = 8.0
ENGINE_START_S = 40.0
STEP_PARTS = frozenset({"generation_s", "load_s", "train_s", "save_s", "publish_s"})
SHARE_OF_BUDGET = 0.3
"""Rollouts mostly end well before their budgets."""
BYTES_PER_PARAMETER = 16
"""fp32 weights, gradients, and AdamW's two moments."""
TRAINER_FIXED_BYTES = 3.0e9
ENGINE_FIXED_BYTES = 1.2e9


def estimate(config: RunConfig) -> dict[str, Any]:
    """hours, rollouts, tokens, trainer_memory_bytes, engine_memory_bytes, disk_bytes, warnings; `rough` is True."""
    config = scheduled_config(config)
    model = Model.objects.filter(name=config.model.name).first()
    parameters = float(model.num_parameters) if model and model.num_parameters else CPU_PARAMETERS
    per_rollout = SHARE_OF_BUDGET * min(
        config.budgets.max_sampled_tokens, config.budgets.max_calls * config.sampling.max_tokens
    )
    per_step = config.tasks.groups_per_step * config.tasks.rollouts_per_group
    num_evaluations = _num_evaluations(config)
    rollouts = {
        "demonstrations": config.warm_start.demonstrations if has_online_phase(config) else 0,
        "training": per_step * config.optimization.steps,
        "evaluation": config.evaluation.tasks * config.evaluation.samples_per_task * num_evaluations,
    }
    slower = max(parameters / CPU_PARAMETERS, 0.05)
    generate_s = (rollouts["training"] + rollouts["evaluation"]) * per_rollout * slower / CPU_GENERATED_TOKENS_PER_S
    trained = per_step * config.optimization.steps + rollouts["demonstrations"] * config.warm_start.epochs
    trained += _dataset_rollouts(config)
    train_s = trained * per_rollout * slower / CPU_TRAINED_TOKENS_PER_S
    seconds = ENGINE_START_S + generate_s + train_s + config.optimization.steps * CPU_STEP_OVERHEAD_S
    measured = _measured_step_s(config)
    if measured is not None and has_online_phase(config):
        evaluation_s = rollouts["evaluation"] * per_rollout * slower / CPU_GENERATED_TOKENS_PER_S
        seconds = ENGINE_START_S + evaluation_s + measured * config.optimization.steps
    trainer = _trainer_bytes(config, parameters)
    engine = parameters * 2 + config.engine.kv_cache_gb * 1e9 + ENGINE_FIXED_BYTES
    return {
        "rough": True,
        "measured": measured is not None,
        "hours": round(seconds / 3600, 2),
        "rollouts": rollouts,
        "tokens": int((rollouts["training"] + rollouts["evaluation"]) * per_rollout),
        "trainer_memory_bytes": int(trainer),
        "engine_memory_bytes": int(engine),
        "disk_bytes": int(parameters * (4 * config.schedule.keep_versions + 12)),
        "warnings": _warnings(config, model, trainer + engine),
    }


def _num_evaluations(config: RunConfig) -> int:
    if config.evaluation.tasks == 0:
        return 0
    if not has_online_phase(config):
        return 1
    between = (config.optimization.steps - 1) // config.evaluation.every_steps if config.evaluation.every_steps else 0
    return 2 + between


def _dataset_rollouts(config: RunConfig) -> float:
    """Passes over the rollouts of a data set; a preference step reads both sides twice."""
    if config.kind == "supervised":
        name, epochs, each = config.supervised.dataset, config.supervised.epochs, 1.0
    elif config.kind == "preference":
        name, epochs, each = config.preference.dataset, config.preference.epochs, 4.0
    else:
        return 0.0
    items = Dataset.objects.filter(name=name).values_list("num_items", flat=True).first()
    return (items or 0) * epochs * each


def _measured_step_s(config: RunConfig) -> float | None:
    """Mean seconds of a step, generation to publication, of attempts with this model and the same B and N."""
    alike = Metric.objects.filter(
        kind="policy",
        attempt__config__model__name=config.model.name,
        attempt__config__tasks__groups_per_step=config.tasks.groups_per_step,
        attempt__config__tasks__rollouts_per_group=config.tasks.rollouts_per_group,
    )
    means = dict(
        alike.filter(key__in=STEP_PARTS).order_by().values("key").annotate(mean=Avg("value")).values_list("key", "mean")
    )
    return sum(means.values()) if means.keys() == STEP_PARTS else None


def _trainer_bytes(config: RunConfig, parameters: float) -> float:
    trained = parameters if config.optimization.adapter == "none" else parameters * 0.02
    activations = config.optimization.micro_batch_tokens * parameters**0.5 * 20
    return parameters * 4 + trained * (BYTES_PER_PARAMETER - 4) + activations + TRAINER_FIXED_BYTES


def _warnings(config: RunConfig, model: Model | None, memory_bytes: float) -> list[str]:
    warnings = []
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory_bytes > 0.9 * machine:
        warnings.append(
            f"Trainer and engine may need {memory_bytes / 1e9:.0f} GB; this machine has {machine / 1e9:.0f} GB."
        )
    if config.schedule.staleness and not config.schedule.lead_groups:
        warnings.append(
            "schedule.staleness allows dispatch ahead, but schedule.lead_groups 0 keeps at most one burst in flight."
        )
    if config.evaluation.tasks == 0 and has_online_phase(config):
        warnings.append("Without evaluation tasks nothing tells whether the model got better on tasks it never saw.")
    per_step = config.tasks.groups_per_step * config.tasks.rollouts_per_group
    if has_online_phase(config) and per_step < config.harness.max_running:
        warnings.append("harness.max_running is more than a step's rollouts: it is never reached without a lead.")
    if config.budgets.idle_s > config.budgets.wall_time_s:
        warnings.append("budgets.idle_s is longer than budgets.wall_time_s, so it never ends a rollout.")
    if model is not None:
        names = [part.taskset for part in config.tasks.mixture]
        num_tasks = Task.objects.filter(taskset__name__in=names, split=Task.Split.TRAIN).count()
        if has_online_phase(config) and config.warm_start.demonstrations > num_tasks > 0:
            warnings.append(f"{config.warm_start.demonstrations} demonstrations of {num_tasks} tasks repeat some.")
    return warnings
