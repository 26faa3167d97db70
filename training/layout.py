"""Lay samples out as one row of tokens in which every distinct prefix stands once.

From:  the token ids of a micro-batch's samples (training.packing).
To:    training.attention (who attends to whom), training.packing (where each sample's tokens stand).
Holds: a token's ancestors in the row are exactly the tokens before it in its samples; the rows below a token are
       contiguous and follow it; nothing that is longer than the row itself is built.
Never: sees a model.
Cost:  a sort of the samples by their ids, then linear in tokens.

Worked example, two samples of one rollout:

    sample a   1 2 3 4            row      1 2 3 4 | 7 8
    sample b   1 2 7 8            place    0 1 2 3   4 5
                                  runs     Run(0, 4), Run(4, 6)      causal inside
                                  looks    Look(4, 6, 0, 2)          rows 4..5 see all of 0..1
                                  position 0 1 2 3   2 3
                                  ends     6 6 4 4   6 6             where the rows below each token end
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Rows start..stop-1 are consecutive tokens of one branch: each attends to those before it in the run."""

    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Look:
    """Rows start..stop-1 attend to every one of the rows first..last-1, which are ancestors of all of them."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """ids_T, positions_T: the row, without padding. ends_T: place after the last row that has this token as an
    ancestor. places: for each sample, in the order given, where its tokens stand."""

    ids_T: Ints
    positions_T: Ints
    ends_T: Ints
    runs: tuple[Run, ...]
    looks: tuple[Look, ...]
    places: tuple[Ints, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.ids_T)


@dataclass(kw_only=True)
class Branch:
    """A run while it is being laid: the run and depth it hangs from, and where the rows below it end."""

    start: int
    stop: int
    parent: int | None
    depth: int
    below: int


def sort_key(ids: Ints) -> bytes:
    """Lexicographic by token: samples with a common prefix become neighbours."""
    return ids.astype(">u4").tobytes()


def common_prefix(a: Ints, b: Ints) -> int:
    """Number of tokens that both begin with."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size


def lay_out(sequences: Sequence[Ints], *, share: bool) -> Layout:
    """share: hold common prefixes once; otherwise each sequence is a run of its own, in the order given."""
    order = sorted(range(len(sequences)), key=lambda n: sort_key(sequences[n])) if share else range(len(sequences))
    places: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(sequences)
    branches: list[Branch] = []
    before: int | None = None
    size = 0
    for number in order:
        ids = sequences[number]
        shared = 0 if before is None or not share else common_prefix(sequences[before], ids)
        new = np.arange(size, size + len(ids) - shared, dtype=np.int64)
        path = places[before][:shared] if before is not None else new[:0]
        if shared and len(path) == len(places[before or 0]) and len(new):
            branches[-1].stop += len(new)  # the sample before, continued
        elif len(new):
            branches.append(hang(branches, path, size, len(new)))
        places[number] = np.concatenate([path, new])
        before, size = number, size + len(new)
    close(branches)
    return Layout(
        ids_T=fill(sequences, places, size),
        positions_T=fill([np.arange(len(ids)) for ids in sequences], places, size),
        ends_T=build_ends(branches, size),
        runs=tuple(Run(start=branch.start, stop=branch.stop) for branch in branches),
        looks=tuple(build_looks(branches)),
        places=tuple(places),
    )


def hang(branches: Sequence[Branch], path: Ints, start: int, length: int) -> Branch:
    """A new run below the last token of `path`."""
    parent, depth = None, 0
    if len(path):
        last = int(path[-1])
        parent = next(n for n in range(len(branches) - 1, -1, -1) if branches[n].start <= last)
        depth = last + 1
    return Branch(start=start, stop=start + length, parent=parent, depth=depth, below=0)


def close(branches: Sequence[Branch]) -> None:
    """Where the rows below each run end; children come after their parents."""
    for branch in branches:
        branch.below = branch.stop
    for branch in reversed(branches):
        if branch.parent is not None:
            parent = branches[branch.parent]
            parent.below = max(parent.below, branch.below)


def build_looks(branches: Sequence[Branch]) -> list[Look]:
    """One a run that hangs from another: it and all below it see that run up to where it hangs. Neighbours that hang
    from the same token look together."""
    found: list[Look] = []
    for branch in branches:
        if branch.parent is None:
            continue
        first, last = branches[branch.parent].start, branch.depth
        for place, look in enumerate(found):
            if (look.first, look.last, look.stop) == (first, last, branch.start):
                found[place] = Look(start=look.start, stop=branch.below, first=first, last=last)
                break
        else:
            found.append(Look(start=branch.start, stop=branch.below, first=first, last=last))
    return found


def build_ends(branches: Sequence[Branch], size: int) -> Ints:
    """[T]: a token of a run reaches to the run's own end, and over the branches that hang from it or below it."""
    ends = np.zeros(size, dtype=np.int64)
    for branch in branches:
        ends[branch.start : branch.stop] = branch.stop
    for branch in branches:
        if branch.parent is not None:
            above = slice(branches[branch.parent].start, branch.depth)
            np.maximum(ends[above], branch.below, out=ends[above])
    return ends


def fill(values: Sequence[Ints], places: Sequence[Ints], size: int) -> Ints:
    row = np.zeros(size, dtype=np.int64)
    for value, place in zip(values, places, strict=True):
        row[place] = value
    return row


def clip(layout: Layout, start: int, stop: int) -> tuple[list[Run], list[Look]]:
    """The attention of rows start..stop-1 alone, still against all rows: a run cut at its beginning sees the part
    before it as a Look. (Context parallelism: each rank computes some of the rows.)"""
    runs, looks = [], []
    for run in layout.runs:
        low, high = max(run.start, start), min(run.stop, stop)
        if low >= high:
            continue
        runs.append(Run(start=low, stop=high))
        if low > run.start:
            looks.append(Look(start=low, stop=high, first=run.start, last=low))
    for look in layout.looks:
        low, high = max(look.start, start), min(look.stop, stop)
        if low < high:
            looks.append(Look(start=low, stop=high, first=look.first, last=look.last))
    return runs, looks


def distinct_tokens(sequences: Sequence[Ints]) -> int:
    """Tokens of the tree of all sequences: what a packing that shares every prefix computes."""
    ordered = sorted(sequences, key=sort_key)
    shared = sum(common_prefix(a, b) for a, b in pairwise(ordered))
    return sum(len(ids) for ids in ordered) - shared
