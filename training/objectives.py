"""Losses of tokens, and how they become one number: pure functions on tensors.

From:  trainer logprobs with gradient, old logprobs, advantages, all [T] over the *trained* tokens only.
To:    training.trainer sums `weights_T * losses_T` over micro-batches and divides once by the denominator.
Holds: the number of samples of a rollout never changes its weight; a token that is not trained is not here.
Never: applies a mask of its own, sees a model, reads a config.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """[T] each. sequence_T: 0-based number of the sample that a token belongs to, whole samples only."""

    trainer_logprobs_T: Tensor
    old_logprobs_T: Tensor
    advantages_T: Tensor
    sequence_T: Tensor


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The ratio may move within [1 - low, 1 + high]."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """losses_T: [T] with gradient, to be minimised. clipped_T: [T] bool, where the clip took the gradient away."""

    losses_T: Tensor
    clipped_T: Tensor


def clipped_surrogate(log_ratio_T: Tensor, advantages_T: Tensor, clip: Clip) -> TokenLosses:
    """-min(r A, clip(r) A), PPO (arXiv 1707.06347, eq. 7)."""
    ratio_T = torch.exp(log_ratio_T)
    bounded_T = ratio_T.clamp(1 - clip.low, 1 + clip.high)
    free_T, limited_T = ratio_T * advantages_T, bounded_T * advantages_T
    return TokenLosses(losses_T=-torch.minimum(free_T, limited_T), clipped_T=(limited_T < free_T).detach())


def ppo_clip(tokens: Tokens, clip: Clip) -> TokenLosses:
    """One clip width on both sides: the lower one."""
    log_ratio_T = tokens.trainer_logprobs_T - tokens.old_logprobs_T
    return clipped_surrogate(log_ratio_T, tokens.advantages_T, Clip(low=clip.low, high=clip.low))


def dapo(tokens: Tokens, clip: Clip) -> TokenLosses:
    """PPO with a higher upper clip, so that rare tokens can grow (arXiv 2503.14476)."""
    return clipped_surrogate(tokens.trainer_logprobs_T - tokens.old_logprobs_T, tokens.advantages_T, clip)


def gspo(tokens: Tokens, clip: Clip) -> TokenLosses:
    """PPO on the geometric mean ratio of the whole sequence (arXiv 2507.18071, eq. 7)."""
    log_ratio_T = sequence_mean(tokens.trainer_logprobs_T - tokens.old_logprobs_T, tokens.sequence_T)
    return clipped_surrogate(log_ratio_T, tokens.advantages_T, clip)


def cispo(tokens: Tokens, clip: Clip) -> TokenLosses:
    """REINFORCE weighted by the ratio, capped above and without gradient (arXiv 2506.13585); no lower cap, as there."""
    ratio_T = torch.exp(tokens.trainer_logprobs_T - tokens.old_logprobs_T).detach()
    weight_T = ratio_T.clamp(max=1 + clip.high)
    return TokenLosses(
        losses_T=-weight_T * tokens.advantages_T * tokens.trainer_logprobs_T, clipped_T=ratio_T > 1 + clip.high
    )


def reinforce(tokens: Tokens, clip: Clip) -> TokenLosses:
    """-A log p. Nothing is clipped."""
    losses_T = -tokens.advantages_T * tokens.trainer_logprobs_T
    return TokenLosses(losses_T=losses_T, clipped_T=torch.zeros_like(losses_T, dtype=torch.bool))


POLICY_LOSSES: dict[str, Callable[[Tokens, Clip], TokenLosses]] = {
    "ppo_clip": ppo_clip,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "reinforce": reinforce,
}


def supervised(trainer_logprobs_T: Tensor) -> Tensor:
    """Cross entropy of each token."""
    return -trainer_logprobs_T


def kl_penalty(kind: str, *, trainer_logprobs_T: Tensor, reference_logprobs_T: Tensor) -> Tensor:
    """Estimates of KL(trainer || reference) on the trainer's samples (Schulman, joschu.net/blog/kl-approx.html)."""
    log_ratio_T = reference_logprobs_T - trainer_logprobs_T
    if kind == "k1":
        return -log_ratio_T
    if kind == "k2":
        return log_ratio_T.square() / 2
    if kind == "k3":
        return torch.expm1(log_ratio_T) - log_ratio_T
    raise ValueError(f"unknown KL estimator {kind!r}; use k1, k2 or k3")


def charge_kl(advantages_T: Tensor, kl_T: Tensor, *, coefficient: float) -> Tensor:
    """A_t - beta k_t, without gradient through k: the KL as a cost of the token that was sampled.

    With k1 the gradient is that of k2 in the loss, on policy (arXiv 2510.01555); sums to come are not charged.
    """
    return advantages_T - coefficient * kl_T.detach()


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """Loss of a step = sum of weights_T * losses_T over its micro-batches / denominator."""

    weights_T: Tensor
    denominator: float


def build_aggregation(
    kind: str, *, sequence_T: Tensor, rollout_T: Tensor, num_rollouts: int, constant_length: int
) -> Aggregation:
    """Weights of all trained tokens of a whole step.

    sequence_T, rollout_T: [T] int64, 0-based numbers of a token's sample and rollout. num_rollouts: of the step,
    those without a trained token left out. constant_length: tokens by which `constant-length` divides.
    """
    weights_T = torch.ones(len(rollout_T), dtype=torch.float64)
    if kind == "token-mean":
        return Aggregation(weights_T=weights_T.float(), denominator=float(max(len(rollout_T), 1)))
    if kind == "two-level":
        weights_T = 1 / counts_of(rollout_T)
    elif kind == "sequence-mean":
        sequences_T = sequences_of_rollout(sequence_T, rollout_T)
        weights_T = 1 / (counts_of(sequence_T) * sequences_T)
    elif kind == "constant-length":
        weights_T = weights_T / constant_length
    else:
        raise ValueError(f"unknown aggregation {kind!r}")
    return Aggregation(weights_T=weights_T.float(), denominator=float(max(num_rollouts, 1)))


def counts_of(number_T: Tensor) -> Tensor:
    """[T] float64: how many entries share the number at each place."""
    if len(number_T) == 0:
        return torch.zeros(0, dtype=torch.float64)
    return torch.bincount(number_T).double()[number_T]


def sequences_of_rollout(sequence_T: Tensor, rollout_T: Tensor) -> Tensor:
    """[T] float64: how many samples the token's rollout has, so that J samples weigh 1 / J each."""
    pairs = torch.unique(torch.stack([rollout_T, sequence_T]), dim=1)
    size = int(rollout_T.max()) + 1 if len(rollout_T) else 0
    return torch.bincount(pairs[0], minlength=size).double()[rollout_T]


def sequence_mean(values_T: Tensor, sequence_T: Tensor) -> Tensor:
    """[T]: the mean over the token's sequence, with gradient to all its tokens."""
    size = int(sequence_T.max()) + 1 if len(sequence_T) else 0
    sums = torch.zeros(size, dtype=values_T.dtype, device=values_T.device).index_add(0, sequence_T, values_T)
    counts = torch.bincount(sequence_T, minlength=size).clamp(min=1)
    return (sums / counts)[sequence_T]
