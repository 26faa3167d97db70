"""Several devices train as one: FSDP2 shards the weights; micro-batches or their rows are divided among the ranks.

From:  a process group that is there already (training.trainer_group, or torchrun).
To:    training.causal_lm (sharding, this rank's share of a row), training.trainer (this rank's micro-batches, sums).
Holds: gradients are *sums* over ranks, so that a step of several ranks is the step of one, to rounding.
Never: decides what is trained.

`data`: each rank computes other micro-batches. `context`: all ranks compute the same micro-batch, each its share of
the row, and hand each other the keys and values of every layer: for samples that are too long for one device.
torch's own `context_parallel` splits plain causal attention on CUDA only; a tree needs other relations, so its
collectives are used here around our attention (docs/decisions).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.attention import Rows
from training.layout import clip
from training.packing import MicroBatch

Division = Literal["data", "context"]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those of its cell."""

    rank: int
    world: int
    division: Division
    device: torch.device

    @classmethod
    def here(cls, division: Division) -> "Ranks":
        """From torch.distributed's default group; one device a rank."""
        rank = dist.get_rank()
        device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else None
        return cls(rank=rank, world=dist.get_world_size(), division=division, device=device or torch.device("cpu"))

    def sum(self, values: Tensor) -> Tensor:
        """Over the ranks, the same on each."""
        found = values.to(self.device)
        dist.all_reduce(found)
        return found.to(values.device)

    def max(self, values: Tensor) -> Tensor:
        found = values.to(self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return found.to(values.device)


def shard(passes: nn.Module, ranks: Ranks, *, precision: str) -> None:
    """FSDP2: one unit a decoder layer, one for the rest. Shards stay float32 and are the master weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    core: Any = passes.core
    for layer in core.base_model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(passes, mesh=mesh, mp_policy=policy)
    for module in (*core.base_model.layers, passes):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of a micro-batch: consecutive rows, and the trained tokens that they predict.

    mine_M: places among the micro-batch's M trained tokens; None where all are here.
    """

    ids_T: Tensor
    positions_T: Tensor
    rows: Rows
    predict_M: Tensor
    targets_M: Tensor
    mine_M: Tensor | None
    size_M: int

    def whole(self, values_M: Tensor) -> Tensor:
        """This rank's values -> those of the whole micro-batch, on every rank."""
        if self.mine_M is None:
            return values_M
        found: Tensor = Spread.apply(values_M, self.mine_M.to(values_M.device), self.size_M)  # type: ignore[no-untyped-call]
        return found


def share_of(batch: MicroBatch, ranks: Ranks | None) -> Share:
    if ranks is None or ranks.division == "data":
        return Share(
            ids_T=batch.ids_T, positions_T=batch.positions_T, rows=batch.rows, predict_M=batch.predict_M,
            targets_M=batch.targets_M, mine_M=None, size_M=len(batch.targets_M),
        )  # fmt: skip
    padding = torch.zeros(-len(batch.ids_T) % ranks.world, dtype=torch.int64)
    ids_T, positions_T = torch.cat([batch.ids_T, padding]), torch.cat([batch.positions_T, padding])
    size = len(ids_T) // ranks.world
    start, stop = ranks.rank * size, (ranks.rank + 1) * size
    runs, looks = clip(batch.layout, start, stop)
    mine_M = torch.nonzero((batch.predict_M >= start) & (batch.predict_M < stop))[:, 0]
    return Share(
        ids_T=ids_T[start:stop],
        positions_T=positions_T[start:stop],
        rows=Rows(runs=tuple(runs), looks=tuple(looks), ends_T=batch.rows.ends_T, offset=start, gather=gather_rows),
        predict_M=batch.predict_M[mine_M] - start,
        targets_M=batch.targets_M[mine_M],
        mine_M=mine_M,
        size_M=len(batch.targets_M),
    )


def gather_rows(local: Tensor) -> Tensor:
    """[1, heads, T / world, d] -> [1, heads, T, d]."""
    found: Tensor = GatherRows.apply(local)  # type: ignore[no-untyped-call]
    return found


class GatherRows(torch.autograd.Function):
    """Every rank's rows in order; backward, the sum over the ranks of what each wants of these rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        local = local.contiguous()
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)
        ctx.size = local.shape[2]
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.size
        return total[:, :, start : start + ctx.size]


class Spread(torch.autograd.Function):
    """Put this rank's values at their places and add up over the ranks. What follows is computed alike on each rank,
    so the gradient of a value is the one that its own rank finds."""

    @staticmethod
    def forward(ctx: Any, values_M: Tensor, mine_M: Tensor, size: int) -> Tensor:
        whole = values_M.new_zeros(size)
        whole[mine_M] = values_M
        dist.all_reduce(whole)
        ctx.save_for_backward(mine_M)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (mine_M,) = ctx.saved_tensors
        return grads[0][mine_M], None, None
