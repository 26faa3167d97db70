"""The weights that the optimizer moves, in float32, and the copy that the passes compute with.

From:  training.trainer, for any torch module.
To:    gradients of all micro-batches of a step, summed in float32 whatever the precision of the passes.
Holds: with fp32 the master *is* the parameter; with bf16 the parameter is its rounded copy after each step.
Why:   casting under autocast costs a copy of every weight and activation in every pass; a bf16 module with float32
       masters gives the same products, keeps the residual stream as the engine does, and rounds no sum.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from training.parallel import Ranks


def round_parameters(module: nn.Module) -> None:
    """To bf16 in place; buffers stay, because rotary frequencies rounded to bf16 move every position."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Gathered from all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(value: Tensor, tensor: Tensor) -> Tensor:
    """`value`, cut into shards as `tensor` is."""
    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)


class MasterWeights:
    """named: trainable parameters by name. masters: float32 leaves with `.grad`, in the same order."""

    def __init__(self, module: nn.Module, *, precision: str, ranks: Ranks | None = None) -> None:
        self.ranks = ranks
        self.copies: dict[str, nn.Parameter] = {}
        self.masters: dict[str, Tensor] = {}
        trainable = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if precision == "fp32" or ranks is not None:  # a sharded parameter is float32; FSDP2 rounds what it gathers
            self.masters = dict(trainable)
            return
        for name, parameter in trainable:
            self.masters[name] = parameter.detach().float().clone()
            self.copies[name] = parameter
            parameter.register_post_accumulate_grad_hook(self._adder(name))  # type: ignore[no-untyped-call]
        round_parameters(module)

    def _adder(self, name: str):  # type: ignore[no-untyped-def]
        """Moves a finished bf16 gradient into the master's float32 sum."""

        def add(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                return
            master = self.masters[name]
            if master.grad is None:
                master.grad = gradient.float()
            else:
                master.grad.add_(gradient)

        return add

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.masters.values())

    @torch.no_grad()
    def scale_and_clip(self, *, denominator: float, max_norm: float) -> float:
        """Divide the summed gradients and bound their norm. returns the norm before the bound."""
        gradients = [master.grad for master in self if master.grad is not None]
        if not gradients:
            return 0.0
        norm = self._norm(gradients) / denominator
        factor = min(1.0, max_norm / (norm + 1e-6)) / denominator
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def _norm(self, gradients: list[Tensor]) -> float:
        """Over all weights; each rank has other shards of them."""
        local = torch.stack([torch.linalg.vector_norm(local_part(gradient)) for gradient in gradients])
        if self.ranks is None:
            return float(torch.linalg.vector_norm(local))
        return float(self.ranks.sum(local.double().square().sum()[None])[0].sqrt())

    @torch.no_grad()
    def drop_gradients(self) -> None:
        for master in self:
            master.grad = None

    @torch.no_grad()
    def publish_to_copies(self) -> None:
        """Round the masters into the parameters that the passes use."""
        for name, parameter in self.copies.items():
            parameter.copy_(self.masters[name])

    def state(self) -> dict[str, Tensor]:
        """Whole tensors; on every rank, because all must gather together."""
        return {name: whole(master.detach()) for name, master in self.masters.items()}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        if set(state) != set(self.masters):
            raise ValueError("the checkpoint has other weights than the model: was the model or its adapter changed?")
        for name, master in self.masters.items():
            master.copy_(like(state[name], master))
        self.publish_to_copies()
