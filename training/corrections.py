"""What tokens weigh that another policy sampled: off-policy corrections and the mismatch between two logprobs.

From:  trainer logprobs at the step's first weights (`proximal`) and the engine's (`behaviour`), [T] float32.
To:    training.trainer multiplies token losses by the weights; masked tokens leave the denominators.
Holds: weights carry no gradient; `none` weighs 1.
Never: decides which tokens are trained otherwise (training.selection does).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ICEPOP_BAND = (0.5, 5.0)
"""Band of the ratio outside which a token is masked (IcePop, the published default)."""


@dataclass(frozen=True, kw_only=True)
class Correction:
    """weights_T: [T] float32 factors. keep_T: [T] bool, False for tokens that must not be trained."""

    weights_T: Tensor
    keep_T: Tensor


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Trainer against engine on the tokens that the engine sampled: absolute difference of logprobs and k3 KL."""

    mean: float
    max: float
    kl: float


def build_correction(kind: str, *, proximal_T: Tensor, behaviour_T: Tensor, cap: float) -> Correction:
    """Weights of `none`, `tis`, `icepop` or `decoupled`. The policy loss then compares with `old_logprobs`."""
    proximal_T, behaviour_T = proximal_T.detach(), behaviour_T.detach()
    all_T = torch.ones_like(behaviour_T, dtype=torch.bool)
    ratio_T = torch.exp(proximal_T - behaviour_T)
    if kind == "none":
        return Correction(weights_T=torch.ones_like(ratio_T), keep_T=all_T)
    if kind == "tis":
        return Correction(weights_T=ratio_T.clamp(max=cap), keep_T=all_T)
    if kind == "decoupled":
        return Correction(weights_T=ratio_T, keep_T=all_T)
    if kind == "icepop":
        low, high = ICEPOP_BAND
        keep_T = (ratio_T >= low) & (ratio_T <= high)
        return Correction(weights_T=torch.where(keep_T, ratio_T, torch.zeros_like(ratio_T)), keep_T=keep_T)
    raise ValueError(f"unknown correction {kind!r}; use none, tis, icepop or decoupled")


def old_logprobs(kind: str, *, proximal_T: Tensor, behaviour_T: Tensor) -> Tensor:
    """Whom the policy ratio compares with: the sampling policy itself, or the trainer's own start of the step."""
    return (behaviour_T if kind == "none" else proximal_T).detach()


def measure_mismatch(trainer_T: Tensor, behaviour_T: Tensor) -> Mismatch:
    """KL(behaviour || trainer), estimated by k3 on behaviour's samples: mean of r - 1 - log r, r = trainer / behaviour."""
    if len(trainer_T) == 0:
        return Mismatch(mean=0.0, max=0.0, kl=0.0)
    delta_T = (trainer_T - behaviour_T).double()
    kl = (torch.expm1(delta_T) - delta_T).mean()
    return Mismatch(mean=float(delta_T.abs().mean()), max=float(delta_T.abs().max()), kl=float(kl))
