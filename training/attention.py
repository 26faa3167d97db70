"""Attention of one packed row: every token sees its ancestors, and never a [tokens, tokens] matrix exists.

From:  transformers' attention interface (`gyre_tree`), with the row's Rows as an argument of every layer.
To:    the layers' outputs, with gradient.
Holds: the result of a token is what the model gives on its branch alone, to rounding; memory is linear in tokens.
Cost:  one causal kernel a run and one full kernel a look (training.layout); on CUDA one FlexAttention kernel with a
       block mask over the same relation.

A run's own part and the parts it looks at are computed apart and joined by their log-sum-exps: with weights
w_i = exp(lse_i - lse), lse = log sum_i exp lse_i, the output is sum_i w_i out_i. The same identity makes the backward
pass of each part exact when it is given the joined output and lse (as in ring attention, arXiv 2310.01889).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from training.layout import Layout, Look, Run

ATTENTION = "gyre_tree"
"""Name under which transformers finds `tree_attention`."""

flash_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """What attention needs of a layout. Rows beyond the runs are padding: they attend to nothing and give 0.

    gather: keys or values of these rows -> those of all rows (context parallelism); None where these are all.
    offset: place of the first of these rows among all. ends_T: for the block mask on CUDA.
    """

    runs: tuple[Run, ...]
    looks: tuple[Look, ...]
    ends_T: Tensor | None = None
    offset: int = 0
    gather: Callable[[Tensor], Tensor] | None = None


def rows_of(layout: Layout) -> Rows:
    return Rows(runs=layout.runs, looks=layout.looks, ends_T=torch.from_numpy(layout.ends_T))


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    rows: Rows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query: [1, heads, T, d]; key, value: [1, key heads, T, d]. returns [1, T, heads, d].

    Without `rows` the whole row is one causal run.
    """
    dtype, scale = query.dtype, float(scaling or query.shape[-1] ** -0.5)
    if rows is None:
        rows = Rows(runs=(Run(start=0, stop=query.shape[2]),), looks=())
    if rows.gather is not None:
        key, value = rows.gather(key), rows.gather(value)
    if query.device.type == "cuda":
        return flex(query, key, value, rows, scale).transpose(1, 2).contiguous(), None
    if (
        dtype == torch.bfloat16 and query.device.type == "cpu"
    ):  # float32 kernels take 0.75 of the bf16 ones' time on CPU, and round nothing
        query, key, value = query.float(), key.float(), value.float()
    output: Tensor = TreeAttention.apply(query, key, value, rows, scale)  # type: ignore[no-untyped-call]
    return output.to(dtype).transpose(1, 2).contiguous(), None


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kernel: these queries (rows of this rank) against those keys."""

    queries: slice
    keys: slice
    causal: bool


def parts_of(rows: Rows) -> list[Part]:
    own = [
        Part(
            queries=slice(run.start - rows.offset, run.stop - rows.offset),
            keys=slice(run.start, run.stop),
            causal=True,
        )
        for run in rows.runs
    ]
    above = [
        Part(
            queries=slice(look.start - rows.offset, look.stop - rows.offset),
            keys=slice(look.first, look.last),
            causal=False,
        )
        for look in rows.looks
    ]
    return [*own, *above]


class TreeAttention(torch.autograd.Function):
    """Grouped queries share a key by a batch dimension of stride 0: keys are never copied out."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Rows, scale: float) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        q, k, v = by_group(query, groups), by_group_shared(key, groups), by_group_shared(value, groups)
        output = torch.zeros_like(q)
        lse = q.new_full(q.shape[:3], -torch.inf)
        for part in parts_of(rows):
            mine, theirs = part.queries, part.keys
            out, part_lse = flash_forward(
                q[:, :, mine], k[:, :, theirs], v[:, :, theirs], 0.0, part.causal, scale=scale
            )
            if part.causal:  # the first part of each row
                output[:, :, mine], lse[:, :, mine] = out, part_lse
            else:
                join(output[:, :, mine], lse[:, :, mine], out, part_lse)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.rows, ctx.scale = rows, scale
        return from_groups(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, lse = ctx.saved_tensors
        groups = query.shape[1] // key.shape[1]
        q, k, v = by_group(query, groups), by_group_shared(key, groups), by_group_shared(value, groups)
        grad = by_group(grads[0], groups)
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(key), torch.zeros_like(value)
        for part in parts_of(ctx.rows):
            mine, theirs = part.queries, part.keys
            dq, dk, dv = flash_backward(
                grad[:, :, mine], q[:, :, mine], k[:, :, theirs], v[:, :, theirs], output[:, :, mine],
                lse[:, :, mine], 0.0, part.causal, scale=ctx.scale,
            )  # fmt: skip
            grad_q[:, :, mine] += dq
            grad_k[0, :, theirs] += dk.sum(0)
            grad_v[0, :, theirs] += dv.sum(0)
        return from_groups(grad_q), grad_k, grad_v, None, None


def join(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Weigh two partial results of the same rows by what each part summed; in place."""
    joined = torch.logaddexp(lse, other_lse)
    output.mul_(torch.exp(lse - joined)[..., None]).add_(other * torch.exp(other_lse - joined)[..., None])
    lse.copy_(joined)


def by_group(tensor: Tensor, groups: int) -> Tensor:
    """[1, key heads * groups, T, d] -> [groups, key heads, T, d]."""
    _, heads, length, size = tensor.shape
    return tensor.view(heads // groups, groups, length, size).transpose(0, 1)


def by_group_shared(tensor: Tensor, groups: int) -> Tensor:
    """[1, key heads, T, d] -> [groups, key heads, T, d], one memory."""
    return tensor.expand(groups, *tensor.shape[1:])


def from_groups(tensor: Tensor) -> Tensor:
    groups, heads, length, size = tensor.shape
    return tensor.transpose(0, 1).reshape(1, heads * groups, length, size)


# CUDA: one kernel. Not run by the tests' machines; the mask's relation and the call are (on CPU, forward).


def ancestor_mask(ends_T: Tensor, offset: int = 0) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention mask_mod: row `key` is an ancestor of row `query`, or is it itself. Padding has end 0."""

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query + offset) & (query + offset < ends_T[key])

    return mask


@functools.cache
def compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


@functools.lru_cache(maxsize=4)
def block_mask(rows: Rows, num_queries: int, num_keys: int, device: torch.device) -> Any:
    """Once a micro-batch, for all its layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    assert rows.ends_T is not None
    ends_T = torch.zeros(num_keys, dtype=torch.int64, device=device)
    ends_T[: len(rows.ends_T)] = rows.ends_T.to(device)
    mask = ancestor_mask(ends_T, rows.offset)
    return create_block_mask(mask, None, None, num_queries, num_keys, device=str(device))


def flex(query: Tensor, key: Tensor, value: Tensor, rows: Rows, scale: float) -> Tensor:
    """[1, heads, T, d]. Rows that see nothing give 0."""
    mask = block_mask(rows, query.shape[2], key.shape[2], query.device)
    attend = compiled_flex() if query.device.type == "cuda" else uncompiled_flex()
    output: Tensor = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return output


def uncompiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


def single_runs(lengths: Sequence[int]) -> tuple[Run, ...]:
    """Runs of these lengths end to end."""
    runs, start = [], 0
    for length in lengths:
        runs.append(Run(start=start, stop=start + length))
        start += length
    return tuple(runs)


AttentionInterface.register(ATTENTION, tree_attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
