"""Credit each rollout against others: one number a rollout, which all its samples carry.

From:  the rewards of the members that are in the baseline (training.trainer_process), group by group.
To:    Member.advantage and training.objectives.
Holds: equal rewards give zeros; a member that was never scored is absent, not 0.
Never: knows tokens, samples or the database.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EQUAL = 1e-8
"""Rewards that differ by less are equal: float noise in a mean must not be blown up by a division."""


def batch_advantages(kind: str, rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """rewards: one list a group, baseline members only. returns: the same shape; an empty group stays empty."""
    groups_G = [torch.tensor(list(group), dtype=torch.float64) for group in rewards]
    if kind == "reinforce_pp":
        return [group.tolist() for group in reinforce_pp(groups_G)]
    try:
        per_group = GROUP_ADVANTAGES[kind]
    except KeyError:
        raise ValueError(f"unknown advantage {kind!r}; use one of {', '.join(ADVANTAGES)}") from None
    return [per_group(group).tolist() for group in groups_G]


def has_signal(rewards_G: Tensor) -> bool:
    """At least two members, and not all alike."""
    return len(rewards_G) > 1 and float(rewards_G.max() - rewards_G.min()) > EQUAL


def grpo(rewards_G: Tensor) -> Tensor:
    """Distance from the group's mean in its standard deviations (arXiv 2402.03300; deviation with G - 1)."""
    if not has_signal(rewards_G):
        return torch.zeros_like(rewards_G)
    return (rewards_G - rewards_G.mean()) / rewards_G.std()


def dr_grpo(rewards_G: Tensor) -> Tensor:
    """Distance from the group's mean, not scaled (arXiv 2503.20783)."""
    return rewards_G - rewards_G.mean() if has_signal(rewards_G) else torch.zeros_like(rewards_G)


def rloo(rewards_G: Tensor) -> Tensor:
    """Distance from the mean of the *others* (arXiv 2402.14740)."""
    if not has_signal(rewards_G):
        return torch.zeros_like(rewards_G)
    others = (rewards_G.sum() - rewards_G) / (len(rewards_G) - 1)
    return rewards_G - others


def maxrl(rewards_G: Tensor) -> Tensor:
    """Distance from the group's mean in units of that mean, for rewards >= 0: rare successes weigh most
    (maximum-likelihood RL). A mean of 0 or less carries no gradient."""
    mean = rewards_G.mean() if len(rewards_G) else torch.zeros((), dtype=rewards_G.dtype)
    if not has_signal(rewards_G) or float(mean) <= EQUAL:
        return torch.zeros_like(rewards_G)
    return (rewards_G - mean) / mean


def reinforce_pp(groups_G: Sequence[Tensor]) -> list[Tensor]:
    """Normalised over the whole batch, not the group (REINFORCE++, arXiv 2501.03262)."""
    batch = torch.cat(list(groups_G)) if groups_G else torch.zeros(0, dtype=torch.float64)
    if not has_signal(batch):
        return [torch.zeros_like(group) for group in groups_G]
    mean, std = batch.mean(), batch.std()
    return [(group - mean) / std for group in groups_G]


def overlong_penalty(sampled_tokens: int, *, limit: int, buffer: int) -> float:
    """0 up to limit - buffer, then falling in a line to -1 at the limit and beyond (DAPO, arXiv 2503.14476, eq. 13)."""
    return -min(max((sampled_tokens - (limit - buffer)) / buffer, 0.0), 1.0)


GROUP_ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
}
ADVANTAGES = (*GROUP_ADVANTAGES, "reinforce_pp")
