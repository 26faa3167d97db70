"""Put samples into micro-batches of bounded size, without padding between them.

From:  a step's samples (training.selection), in any order.
To:    training.trainer, which runs one forward and backward for each micro-batch.
Holds: every trained token of every sample is in exactly one micro-batch; a sample is never cut; within a micro-batch
       every distinct prefix stands once; the sizes come from a short ladder of buckets, because allocators and kernel
       caches grow with every new shape.
Never: weighs tokens (training.objectives does) or looks at a model.

`tree` sorts the samples by their ids, so that branches of one rollout, rollouts of one task and tasks with one system
prompt become neighbours, and cuts that order where the least must be computed twice: a tree larger than a micro-batch
is cut at nodes and the boundary computed again. `flat` lays the samples end to end (models whose layers are not all
full attention, and comparisons).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from training.attention import Rows, rows_of
from training.layout import Layout, common_prefix, lay_out, sort_key
from training.selection import Sample

Packing = Literal["tree", "flat"]

BUCKETS = 64
"""Sizes of micro-batches are multiples of the budget divided by this: small batches must not be mostly padding."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """T tokens, M of them trained.

    ids_T, positions_T: [T] int64, padded at the end with id 0. predict_M: place in T whose hidden state predicts the
    trained token; two may share one. targets_M: its id. behaviour_logprobs_M: the engine's, NaN where none. sample_M:
    number of its sample in the step. token_M: number of the trained token in the step, counted through the samples in
    order (`token_numbers`). flat_tokens: of its samples, prefixes counted each time.
    """

    ids_T: Tensor
    positions_T: Tensor
    layout: Layout
    rows: Rows
    num_padding: int
    flat_tokens: int
    predict_M: Tensor
    targets_M: Tensor
    behaviour_logprobs_M: Tensor
    sample_M: Tensor
    token_M: Tensor

    @property
    def num_tokens(self) -> int:
        return len(self.ids_T) - self.num_padding

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the runs; in a flat micro-batch these are its samples."""
        return tuple(run.stop - run.start for run in self.layout.runs)


def build_micro_batches(
    samples: Sequence[Sample], *, budget_tokens: int, wanted: Sequence[int] | None = None, packing: Packing = "tree"
) -> list[MicroBatch]:
    """A sample longer than the budget has a micro-batch of its own.

    wanted: numbers of the samples to take; None: all. One without a trained token is left out in any case: it would
    cost a forward pass and give nothing.
    """
    candidates = range(len(samples)) if wanted is None else wanted
    numbers = [number for number in candidates if samples[number].num_trained]
    bins = (cut_tree if packing == "tree" else first_fit)(samples, numbers, budget_tokens)
    step = max(budget_tokens // BUCKETS, 1)
    return [build_micro_batch(samples, chosen, multiple_of=step, packing=packing) for chosen in bins]


def first_fit(samples: Sequence[Sample], numbers: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Longest first, each into the first bin with room."""
    bins: list[list[int]] = []
    room: list[int] = []
    for number in sorted(numbers, key=lambda number: (-samples[number].num_tokens, number)):
        size = samples[number].num_tokens
        place = next((index for index, free in enumerate(room) if free >= size), None)
        if place is None:
            bins.append([])
            room.append(max(budget_tokens, size))
            place = len(bins) - 1
        bins[place].append(number)
        room[place] -= size
    return bins


def cut_tree(samples: Sequence[Sample], numbers: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Consecutive samples of the sorted order, cut so that the fewest tokens are computed, then the fewest bins.

    A bin that begins with sample j computes all of j; every other sample adds what its neighbour before it has not.
    """
    order = sorted(numbers, key=lambda number: (sort_key(samples[number].ids), number))
    sizes = [samples[number].num_tokens for number in order]
    shared = [0, *(common_prefix(samples[a].ids, samples[b].ids) for a, b in itertools.pairwise(order))]
    best: list[tuple[int, int]] = [(0, 0)]  # (tokens, bins) of the first n samples
    begins = [0]
    for end in range(1, len(order) + 1):
        tokens, choices = 0, []
        for begin in range(end - 1, -1, -1):
            tokens += sizes[begin] - (shared[begin + 1] if begin + 1 < end else 0)
            if tokens > budget_tokens and begin < end - 1:
                break
            choices.append((best[begin][0] + tokens, best[begin][1] + 1, begin))
        total, count, begin = min(choices)
        best.append((total, count))
        begins.append(begin)
    bins, end = [], len(order)
    while end:
        bins.append(order[begins[end] : end])
        end = begins[end]
    return bins[::-1]


def build_micro_batch(
    samples: Sequence[Sample], numbers: Sequence[int], *, multiple_of: int, packing: Packing = "tree"
) -> MicroBatch:
    """Lay out the numbered samples in one row."""
    chosen = [samples[number] for number in numbers]
    layout = lay_out([sample.ids for sample in chosen], share=packing == "tree")
    num_padding = -layout.num_tokens % multiple_of
    padding = np.zeros(num_padding, dtype=np.int64)
    trained = [np.flatnonzero(sample.loss_mask) for sample in chosen]
    predict = [place[token - 1] for place, token in zip(layout.places, trained, strict=True)]
    targets = [sample.ids[token] for sample, token in zip(chosen, trained, strict=True)]
    counts = [len(token) for token in trained]
    firsts = np.cumsum([0, *(sample.num_trained for sample in samples)])
    token_M = np.concatenate([firsts[number] + np.arange(count) for number, count in zip(numbers, counts, strict=True)])
    behaviour = [sample.behaviour_logprobs[sample.loss_mask] for sample in chosen]
    return MicroBatch(
        ids_T=torch.from_numpy(np.concatenate([layout.ids_T, padding])),
        positions_T=torch.from_numpy(np.concatenate([layout.positions_T, padding])),
        layout=layout,
        rows=rows_of(layout),
        num_padding=num_padding,
        flat_tokens=sum(sample.num_tokens for sample in chosen),
        predict_M=torch.from_numpy(np.concatenate(predict)),
        targets_M=torch.from_numpy(np.concatenate(targets)),
        behaviour_logprobs_M=torch.from_numpy(np.concatenate(behaviour)),
        sample_M=torch.from_numpy(np.repeat(np.asarray(numbers, dtype=np.int64), counts)),
        token_M=torch.from_numpy(token_M),
    )


def token_numbers(samples: Sequence[Sample]) -> Tensor:
    """[M] int64: the sample's number for each trained token of the step, in the order of the samples."""
    counts = torch.tensor([sample.num_trained for sample in samples], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(samples)), counts)
