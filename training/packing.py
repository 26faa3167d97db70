"""Put samples into micro-batches of bounded size, without padding between them.

From:  a step's samples (training.selection), in any order.
To:    training.trainer, which runs one forward and backward for each micro-batch.
Holds: every trained token of every sample is in exactly one micro-batch; a sample is never cut; the sizes come from
       a short ladder of buckets, because allocators and kernel caches grow with every new shape.
Never: weighs tokens (training.objectives does) or looks at a model.

A micro-batch lays its samples end to end in one row of tokens; attention is causal within each segment
(`segment_attention`), everything else of a transformer does not look at neighbours. A builder that holds shared
prefixes once (tree packing) would return the same MicroBatch with another attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from training.selection import Sample

ATTENTION = "gyre_segments"
"""Name under which transformers finds `segment_attention`."""

BUCKETS = 64
"""Sizes of micro-batches are multiples of the budget divided by this: small batches must not be mostly padding."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """T tokens, M of them trained.

    ids_T, positions_T: [T] int64, padded at the end with id 0. lengths: of the segments, the padding being the last
    one where num_padding > 0. predict_M: place in T whose hidden state predicts the trained token. targets_M: its id.
    behaviour_logprobs_M: the engine's, NaN where none. sample_M: number of its sample in the step. token_M: number of
    the trained token in the step, counted through the samples in order (`token_numbers`).
    """

    ids_T: Tensor
    positions_T: Tensor
    lengths: tuple[int, ...]
    num_padding: int
    predict_M: Tensor
    targets_M: Tensor
    behaviour_logprobs_M: Tensor
    sample_M: Tensor
    token_M: Tensor

    @property
    def num_tokens(self) -> int:
        return len(self.ids_T) - self.num_padding


def build_micro_batches(
    samples: Sequence[Sample], *, budget_tokens: int, wanted: Sequence[int] | None = None
) -> list[MicroBatch]:
    """First fit, longest first. A sample longer than the budget has a micro-batch of its own.

    wanted: numbers of the samples to take; None: all. One without a trained token is left out in any case: it would
    cost a forward pass and give nothing.
    """
    candidates = range(len(samples)) if wanted is None else wanted
    numbers = [number for number in candidates if samples[number].num_trained]
    numbers.sort(key=lambda number: (-samples[number].num_tokens, number))
    bins: list[list[int]] = []
    room: list[int] = []
    for number in numbers:
        size = samples[number].num_tokens
        place = next((index for index, free in enumerate(room) if free >= size), None)
        if place is None:
            bins.append([])
            room.append(max(budget_tokens, size))
            place = len(bins) - 1
        bins[place].append(number)
        room[place] -= size
    step = max(budget_tokens // BUCKETS, 1)
    return [build_micro_batch(samples, numbers, multiple_of=step) for numbers in bins]


def build_micro_batch(samples: Sequence[Sample], numbers: Sequence[int], *, multiple_of: int) -> MicroBatch:
    """Lay the numbered samples end to end."""
    chosen = [samples[number] for number in numbers]
    lengths = [sample.num_tokens for sample in chosen]
    num_padding = -sum(lengths) % multiple_of
    segments = [*lengths, num_padding] if num_padding else lengths
    ids = np.concatenate([*(sample.ids for sample in chosen), np.zeros(num_padding, dtype=np.int64)])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    places = [start + np.flatnonzero(sample.loss_mask) for start, sample in zip(starts, chosen, strict=True)]
    place_M = np.concatenate(places)
    counts = [len(place) for place in places]
    firsts = np.cumsum([0, *(sample.num_trained for sample in samples)])
    numbers_M = np.repeat(np.asarray(numbers, dtype=np.int64), counts)
    token_M = np.concatenate([firsts[number] + np.arange(count) for number, count in zip(numbers, counts, strict=True)])
    behaviour = np.concatenate([sample.behaviour_logprobs[sample.loss_mask] for sample in chosen])
    return MicroBatch(
        ids_T=torch.from_numpy(ids),
        positions_T=torch.from_numpy(np.concatenate([np.arange(length) for length in segments])),
        lengths=tuple(segments),
        num_padding=num_padding,
        predict_M=torch.from_numpy(place_M - 1),
        targets_M=torch.from_numpy(ids[place_M]),
        behaviour_logprobs_M=torch.from_numpy(behaviour),
        sample_M=torch.from_numpy(numbers_M),
        token_M=torch.from_numpy(token_M),
    )


def token_numbers(samples: Sequence[Sample]) -> Tensor:
    """[M] int64: the sample's number for each trained token of the step, in the order of the samples."""
    counts = torch.tensor([sample.num_trained for sample in samples], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(len(samples)), counts)


def segment_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    segment_lengths: Sequence[int] = (),
    num_padding: int = 0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment of one row, in transformers' attention signature.

    query: [1, heads, T, d]; key, value: [1, key heads, T, d]. returns [1, T, heads, d]. The padding attends nothing.
    """
    lengths = list(segment_lengths) or [query.shape[2]]
    grouped = query.shape[1] != key.shape[1]
    dtype = query.dtype
    if query.device.type == "cpu":  # float32 kernels take 0.75 of the bf16 ones' time there, and round nothing
        query, key, value = query.float(), key.float(), value.float()
    parts: list[Tensor] = []
    for q, k, v in zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query, key, value)), strict=True):
        if num_padding and len(parts) == len(lengths) - 1:
            parts.append(torch.zeros_like(q))
            continue
        parts.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped))
    return torch.cat(parts, dim=2).to(dtype).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, segment_attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
