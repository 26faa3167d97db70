"""What tokens weigh that another policy sampled: off-policy corrections and the mismatch between two logprobs.

From:  trainer logprobs at the step's first weights (`proximal`) and the engine's (`behaviour`), [T] float32.
To:    training.trainer multiplies token losses by the weights; masked tokens leave the denominators.
Holds: weights carry no gradient; `none` weighs 1.
Never: decides which tokens are trained otherwise (training.selection does).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.objectives import sequence_mean

MASKING = frozenset({"icepop", "icepop-sequence"})
"""Kinds that take tokens out of the loss: the trainer must know which before its first backward pass."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """cap: of truncated importance weights. low, high: band of IcePop."""

    cap: float
    low: float
    high: float


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


def build_correction(
    kind: str, *, proximal_T: Tensor, behaviour_T: Tensor, sequence_T: Tensor, bounds: Bounds
) -> Correction:
    """sequence_T: [T] numbers of the tokens' samples, whole samples only. r = exp(proximal - behaviour):

    none             1
    tis              min(r, cap)                      truncated importance sampling (Yao et al. 2025, fengyao.notion.site)
    icepop           r inside [low, high], else out   token by token (IcePop, arXiv 2510.18855)
    icepop-sequence  r where the geometric mean of the sample's ratios is inside, else the whole sample is out
    decoupled        r                                decoupled PPO (arXiv 2110.00641; 2505.24298): the clip compares with
                                                      the proximal policy, this weight leads back to the behaviour
    """
    log_ratio_T = proximal_T.detach() - behaviour_T.detach()
    ratio_T, all_T = torch.exp(log_ratio_T), torch.ones_like(log_ratio_T, dtype=torch.bool)
    if kind == "none":
        return Correction(weights_T=torch.ones_like(ratio_T), keep_T=all_T)
    if kind == "tis":
        return Correction(weights_T=ratio_T.clamp(max=bounds.cap), keep_T=all_T)
    if kind == "decoupled":
        return Correction(weights_T=ratio_T, keep_T=all_T)
    if kind in MASKING:
        judged_T = ratio_T if kind == "icepop" else torch.exp(sequence_mean(log_ratio_T, sequence_T))
        keep_T = (judged_T >= bounds.low) & (judged_T <= bounds.high)
        return Correction(weights_T=torch.where(keep_T, ratio_T, torch.zeros_like(ratio_T)), keep_T=keep_T)
    raise ValueError(f"unknown correction {kind!r}; use none, tis, icepop, icepop-sequence or decoupled")


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
