"""The steps before version 0: warm start, supervised runs, preference runs. One plan, resumable, whatever it learns from.

    kind         learns from                                            a batch
    rl           demonstrations that solved their task                  rollout ids
    supervised   a Dataset of rollouts (rejection sampling, experts)    rollout ids
    preference   a Dataset of judged pairs                              (chosen, rejected) rollout ids

From:  training.trainer_process, when an attempt warms; Dataset rows, recorded nodes.
To:    a plan whose `take` does one step on the trainer.
Holds: the order is a function of the seed; interrupted and resumed equals uninterrupted; the reference logprobs of a
       preference run are those of the weights that it starts from, also after a restart (they are stored first).
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from training.checkpoints import sync
from training.config import RunConfig
from training.datasets import find_dataset
from training.models import Attempt, Dataset
from training.policy_batch import select_all
from training.preference import Pair, preference_step, rollout_logprobs
from training.selection import Sample
from training.trainer import StepReport, Trainer, TrainerError
from training.warm_start import WarmStartPlan, build_plan, learning_rate, load_samples

Take = Callable[[Trainer, list[Any], float], StepReport]


@dataclass(frozen=True, kw_only=True)
class OfflinePlan:
    """batches: what each step learns from, in order. take(trainer, batch, learning rate): does it."""

    batches: list[list[Any]]
    peak_rate: float
    take: Take

    def rate(self, step: int) -> float:
        """step from 1"""
        return learning_rate(step, len(self.batches), self.peak_rate)


def build_offline_plan(attempt: Attempt, config: RunConfig, trainer: Trainer, *, references: Path) -> OfflinePlan:
    """trainer: with the weights that the attempt starts from. references: file of the stored reference logprobs."""
    if config.kind == "supervised":
        items = load_items(config.supervised.dataset, Dataset.Kind.ROLLOUTS)
        batches = shuffle(
            [UUID(item) for item in items], seed=config.seed, epochs=config.supervised.epochs,
            size=config.supervised.batch_size,
        )  # fmt: skip
        return OfflinePlan(batches=batches, peak_rate=config.supervised.learning_rate, take=imitate(config))
    if config.kind == "preference":
        pairs = [
            (UUID(chosen), UUID(rejected))
            for chosen, rejected in load_items(config.preference.dataset, Dataset.Kind.PAIRS)
        ]
        known = load_references(trainer, [pk for pair in pairs for pk in pair], config, references)
        batches = shuffle(pairs, seed=config.seed, epochs=config.preference.epochs, size=config.preference.batch_size)
        return OfflinePlan(batches=batches, peak_rate=config.preference.learning_rate, take=prefer(config, known))
    warm: WarmStartPlan = build_plan(attempt, config)
    return OfflinePlan(batches=warm.batches, peak_rate=warm.peak_rate, take=imitate(config))


def load_items(name: str, kind: str) -> list[Any]:
    dataset = find_dataset(name, kind)
    if dataset is None:
        raise TrainerError(
            f"there is no data set of {Dataset.Kind(kind).label} called {name!r} any more; make it again"
        )
    return list(dataset.items)


def shuffle(items: Sequence[Any], *, seed: int, epochs: float, size: int) -> list[list[Any]]:
    """Anew for each pass; the last batch may be short."""
    source = random.Random(f"offline-{seed}")
    order: list[Any] = []
    wanted = max(1, round(len(items) * epochs))
    while items and len(order) < wanted:
        one = list(items)
        source.shuffle(one)
        order += one
    order = order[:wanted]
    return [order[start : start + size] for start in range(0, len(order), size)]


def imitate(config: RunConfig) -> Take:
    def take(trainer: Trainer, batch: list[Any], rate: float) -> StepReport:
        return trainer.supervised_step(load_samples(batch, config), learning_rate=rate)

    return take


def prefer(config: RunConfig, references: dict[UUID, float]) -> Take:
    def take(trainer: Trainer, batch: list[Any], rate: float) -> StepReport:
        samples = select_sides([pk for pair in batch for pk in pair], config)
        pairs = [Pair(chosen=samples[chosen], rejected=samples[rejected]) for chosen, rejected in batch]
        return preference_step(trainer, pairs, references=references, settings=config.preference, learning_rate=rate)

    return take


def select_sides(rollout_ids: Sequence[UUID], config: RunConfig) -> dict[UUID, tuple[Sample, ...]]:
    wanted = list(dict.fromkeys(rollout_ids))
    found = select_all(wanted, max_samples=config.objective.max_samples_per_rollout, purpose="supervised")
    empty = [str(pk) for pk in wanted if not found[pk].samples]
    if empty:
        raise TrainerError(f"rollout {empty[0]} has no token to train; make the data set again without it")
    return {pk: found[pk].samples for pk in wanted}


def load_references(trainer: Trainer, rollout_ids: Sequence[UUID], config: RunConfig, path: Path) -> dict[UUID, float]:
    """Stored ones, else computed now and stored before anything is trained."""
    if path.exists():
        return {UUID(pk): value for pk, value in json.loads(path.read_text()).items()}
    found: dict[UUID, float] = {}
    wanted = list(dict.fromkeys(rollout_ids))
    for start in range(0, len(wanted), 50):
        found |= rollout_logprobs(trainer, select_sides(wanted[start : start + 50], config))
    part = path.with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps({str(pk): value for pk, value in found.items()}))
    sync(part)
    os.replace(part, path)
    sync(path.parent)
    return found
