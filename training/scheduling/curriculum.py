"""From which family the next group's task is drawn: rather from one in which something can be learnt now. Pure, seeded.

From:  rewards of each family's latest training rollouts (training.scheduling.dispatch reads them).
To:    a task.
Holds: the same rewards and seed give the same task, after any restart; task sets keep their shares; a family's tasks
       all come before one comes again; no family's chance is ever zero, so one that nobody solves yet is tried again.

A group whose members all fail or all succeed has advantage 0 for everybody: its rollouts were for nothing. The chance
that it has a signal grows with p (1 - p), the variance of a reward that is 1 with probability p. "Sampling for
learnability" draws tasks in proportion to it (Rutherford et al. 2024, arXiv 2408.15099; for language models Foster et
al. 2025, arXiv 2502.12272). p is not known here but seen in a few rollouts: its posterior from a uniform prior is
Beta(a, b) with a = 1 + solved, b = 1 + failed, and E[p (1 - p)] = a b / ((a + b) (a + b + 1)).

After 12 rollouts of a family: 6 solved weighs 0.233, none or all solved 0.062; a family not tried yet 0.167.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from training.scheduling.task_order import Part, TaskOrder

T = TypeVar("T")

LATEST = 12
"""Rollouts of a family that count: the policy changes, so what it could do long ago says little."""


def learnability(rewards: Sequence[float]) -> float:
    """E[p (1 - p)] after these rewards, the latest last; each between 0 (failed) and 1 (solved), clipped to it."""
    latest = [min(1.0, max(0.0, reward)) for reward in rewards[-LATEST:]]
    a = 1.0 + sum(latest)
    b = 1.0 + len(latest) - sum(latest)
    return a * b / ((a + b) * (a + b + 1.0))


@dataclass(frozen=True, kw_only=True)
class Curriculum(Generic[T]):
    """parts: as of a TaskOrder, each task with the name of its family. A name is one family across all parts."""

    seed: str
    parts: Sequence[Part[T]]
    _orders: dict[tuple[int, str], TaskOrder[T]] = field(init=False)

    def __post_init__(self) -> None:
        orders = {}
        for number, part in enumerate(self.parts):
            for family in {family for family, _ in part.tasks}:
                tasks = [each for each in part.tasks if each[0] == family]
                order = TaskOrder(seed=f"{self.seed}:{number}:{family}", parts=[Part(weight=1.0, tasks=tasks)])
                orders[number, family] = order
        object.__setattr__(self, "_orders", orders)

    def draw(self, index: int, *, rewards: Mapping[str, Sequence[float]], taken: Mapping[str, int]) -> T:
        """The task of group `index`. rewards, taken: of each family tried so far, its rewards with the latest last, and
        the number of its groups."""
        chance = random.Random(f"{self.seed}:{index}")
        [part] = chance.choices(range(len(self.parts)), [part.weight for part in self.parts])
        families = sorted(family for number, family in self._orders if number == part)
        [family] = chance.choices(families, [learnability(rewards.get(family, ())) for family in families])
        return self._orders[part, family][taken.get(family, 0)]
