"""The numbers of a step, and storing them.

From:  training.trainer (its own keys), training.policy_batch (what a step ate), the controller (evaluation, phases).
To:    Metric rows, and TensorBoard event files where settings.TENSORBOARD_DIR says so.
Holds: what a key means is in training.metric_definitions, which is part of this module's face.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import transaction

from training.metric_definitions import DEFINITIONS, Better, Definition, define
from training.models import Attempt, Metric

if TYPE_CHECKING:  # it imports torch, which the web process does not need
    from training.policy_batch import PolicyBatch

__all__ = ["DEFINITIONS", "Better", "Definition", "batch_metrics", "define", "load_metrics", "mean", "save_metrics"]

KEY_CHARS = 120
Labels = Mapping[str, Mapping[int, str]]
"""dimension ("", "taskset", "harness") -> member id -> label. The dimension "" is the task's family."""


def batch_metrics(batch: "PolicyBatch", *, labels: Labels) -> dict[str, float]:
    """What a policy step ate. Series of a label: `reward_mean/<family>`, `reward_mean/taskset:<name>`."""
    members = batch.members
    rewards = [float(each.member.reward or 0.0) for each in members]
    stale = [each.staleness for each in members if each.staleness is not None]
    rollouts = [each.member.rollout for each in members]
    found = {
        "reward_mean": mean(rewards),
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "solved_fraction": mean([float(reward > 0) for reward in rewards]),
        "advantage_mean": mean([each.advantage for each in members]),
        "advantage_abs": mean([abs(each.advantage) for each in members]),
        "length_mean": mean([float(rollout.sampled_tokens) for rollout in rollouts]),
        "context_max": float(max((rollout.longest_context for rollout in rollouts), default=0)),
        "calls_mean": mean([float(rollout.num_calls) for rollout in rollouts]),
        "branches_mean": mean([float(rollout.num_branches) for rollout in rollouts]),
        "samples_mean": mean([float(len(each.selection.samples)) for each in members]),
        "tokens_left": float(sum(each.selection.num_left for each in members)),
        "no_signal_fraction": len(batch.no_signal) / max(len(batch.groups), 1),
        "staleness_mean": mean([float(value) for value in stale]),
        "staleness_max": float(max(stale, default=0)),
        "members": float(len(members)),
        "excluded": float(len(batch.excluded)),
    }
    found |= histogram(rewards)
    for dimension, names in labels.items():
        found |= by_label("reward_mean", dimension, [names.get(each.member.pk, "") for each in members], rewards)
    reasons = Counter(reason.split(":")[0] for _, reason in batch.excluded)
    return found | {f"excluded/{reason}"[:KEY_CHARS]: float(count) for reason, count in reasons.items()}


def by_label(key: str, dimension: str, labels: list[str], values: list[float]) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        grouped.setdefault(label or "other", []).append(value)
    prefix = f"{dimension}:" if dimension else ""
    return {f"{key}/{prefix}{label}"[:KEY_CHARS]: mean(each) for label, each in grouped.items()}


def histogram(rewards: list[float]) -> dict[str, float]:
    """Ten tenths of 0 to 1, empty ones too, so that every step has the same keys."""
    counts = [0.0] * 10
    for reward in rewards:
        counts[max(0, min(9, int(reward * 10 + 1e-9)))] += 1
    return {f"reward_hist/{place / 10:.1f}": count for place, count in enumerate(counts)}


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def save_metrics(attempt: Attempt, *, kind: str, step: int, values: Mapping[str, float]) -> None:
    """Again with the same step: the newer numbers stay."""
    Metric.objects.bulk_create(
        [Metric(attempt=attempt, kind=kind, step=step, key=key, value=value) for key, value in values.items()],
        update_conflicts=True,
        unique_fields=["attempt", "kind", "step", "key"],
        update_fields=["value", "at"],
    )
    if settings.TENSORBOARD_DIR:
        from training.tensorboard import write_events

        transaction.on_commit(lambda: write_events(attempt, kind=kind, step=step, values=dict(values)), robust=True)


def load_metrics(attempt: Attempt) -> list[Metric]:
    """All of them, by kind, step and key."""
    return list(Metric.objects.filter(attempt=attempt).order_by("kind", "step", "key"))
