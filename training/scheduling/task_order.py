"""In which order tasks are worked on. Pure and seeded: the n-th task of an attempt is the same after any restart.

Within a task set each pass takes every task once, with families spread evenly: task j of a family of n stands at
(j + u) / n of the pass, u random per family. Twelve families of equal size thus give one task each to every twelve
groups. Between task sets each draw is by weight.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Part(Generic[T]):
    """A task set's share: (family, task) pairs in a stable order, at least one."""

    weight: float
    tasks: Sequence[tuple[str, T]]


@dataclass(kw_only=True)
class TaskOrder(Generic[T]):
    """`order[n]` is the n-th task, for any n."""

    seed: str
    parts: Sequence[Part[T]]
    _drawn: list[T] = field(default_factory=list, init=False)
    _source: Iterator[T] | None = field(default=None, init=False)

    def __getitem__(self, index: int) -> T:
        if self._source is None:
            self._source = self._draws()
        while len(self._drawn) <= index:
            self._drawn.append(next(self._source))
        return self._drawn[index]

    def _draws(self) -> Iterator[T]:
        chooser = random.Random(f"{self.seed}:parts")
        passes = [_passes(f"{self.seed}:{number}", part.tasks) for number, part in enumerate(self.parts)]
        weights = [part.weight for part in self.parts]
        while True:
            yield next(chooser.choices(passes, weights)[0])


def _passes(seed: str, tasks: Sequence[tuple[str, T]]) -> Iterator[T]:
    number = 0
    while True:
        yield from _one_pass(f"{seed}:{number}", tasks)
        number += 1


def _one_pass(seed: str, tasks: Sequence[tuple[str, T]]) -> list[T]:
    chance = random.Random(seed)
    families: dict[str, list[T]] = defaultdict(list)
    for family, task in tasks:
        families[family].append(task)
    placed: list[tuple[float, float, T]] = []
    for family in sorted(families):
        members = families[family]
        chance.shuffle(members)
        start = chance.random()
        placed += [((j + start) / len(members), chance.random(), task) for j, task in enumerate(members)]
    return [task for _, _, task in sorted(placed, key=lambda place: place[:2])]
