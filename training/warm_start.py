"""The supervised warm start: imitate demonstrations that are ordinary recorded rollouts.

From:  ended demonstration rollouts of the attempt's expert pool (training.scheduling.demonstrations dispatches them).
To:    training.offline, which does the steps; the trainer's weights, from which version 0 is written.
Holds: the order is a function of the seed; interrupted and resumed equals uninterrupted (a checkpoint every
       CHECKPOINT_STEPS); solutions that did not solve their task are not imitated.
"""

import math
import random
from dataclasses import dataclass
from uuid import UUID

from environments.models import Rollout
from training.config import RunConfig
from training.models import Attempt
from training.policy_batch import select_all
from training.selection import Sample

CHECKPOINT_STEPS = 15


@dataclass(frozen=True, kw_only=True)
class WarmStartPlan:
    """batches: demonstration ids of each step, in order."""

    batches: list[list[UUID]]
    peak_rate: float

    def rate(self, step: int) -> float:
        return learning_rate(step, len(self.batches), self.peak_rate)


def learning_rate(step: int, total: int, peak: float) -> float:
    """step from 1. Linear rise over a tenth of the steps (at most 10), then a cosine down to a tenth of the peak."""
    rising = max(1, min(10, total // 10))
    if step <= rising:
        return peak * step / rising
    share = (step - rising) / max(total - rising, 1)
    return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2)


def expert_pool(attempt: Attempt) -> str:
    return f"{attempt.pool}-expert"


def demonstrations_ended(attempt: Attempt) -> bool:
    """Every demonstration that was dispatched has ended. They exist before the attempt's state is WARMING."""
    rows = Rollout.objects.filter(pool=expert_pool(attempt), purpose=Rollout.Purpose.DEMONSTRATION)
    return not rows.exclude(state=Rollout.State.ENDED).exists()


def build_plan(attempt: Attempt, config: RunConfig) -> WarmStartPlan:
    """Shuffle by seed, anew for each pass; a last incomplete batch of a pass is filled from the next."""
    rows = Rollout.objects.filter(
        pool=expert_pool(attempt), purpose=Rollout.Purpose.DEMONSTRATION, state=Rollout.State.ENDED, reward__gt=0
    )
    ids = list(rows.order_by("task__name", "created_at", "id").values_list("id", flat=True))
    source = random.Random(f"warm-start-{config.seed}")
    wanted = round(len(ids) * config.warm_start.epochs)
    order: list[UUID] = []
    while ids and len(order) < wanted:
        source.shuffle(ids)
        order += ids
    order = order[:wanted]
    size = config.warm_start.batch_size
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return WarmStartPlan(batches=batches, peak_rate=config.warm_start.learning_rate)


def load_samples(rollout_ids: list[UUID], config: RunConfig) -> list[Sample]:
    found = select_all(rollout_ids, max_samples=config.objective.max_samples_per_rollout, purpose="supervised")
    return [sample for rollout_id in rollout_ids for sample in found[rollout_id].samples]
