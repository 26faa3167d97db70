"""What a policy step trains on: its groups' members, judged, credited and cut into samples.

From:  the groups that the controller gave to an OptimizerStep; their members, rollouts and nodes.
To:    training.trainer (rollouts with advantages), training.step_commit (what becomes of each member).
Holds: every member of the groups gets a disposition and, where excluded, a reason; only members in the baseline count
       in mean and deviation; a member that an earlier act excluded stays so.
Never: writes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from environments.models import Node, Outcome, Rollout
from training.advantages import batch_advantages, has_signal, overlong_penalty
from training.config import Objective, RunConfig
from training.models import Group, Member, OptimizerStep
from training.scheduling.settling import placeholder_reward
from training.selection import (
    ROLE_ORDER,
    TRAINED_ROLES,
    NodeRecord,
    Purpose,
    Sample,
    Selection,
    build_record,
    select_samples,
)
from training.trainer import TrainRollout
from training.turn_credit import turn_advantages

OVERLONG = frozenset({Outcome.BUDGET_REACHED, Outcome.CONTEXT_OVERFLOW, Outcome.HARNESS_TIMEOUT})
"""Ended by a limit and not by the agent."""


@dataclass(frozen=True, kw_only=True)
class BatchMember:
    """A member that takes part. staleness: version in training minus the oldest that sampled; None if unknown.
    masked: overlong; it has no samples, but counts in its group's baseline."""

    member: Member
    advantage: float
    selection: Selection
    staleness: int | None
    rollout: TrainRollout
    masked: bool = False

    @property
    def trained_tokens(self) -> int:
        return sum(sample.num_trained for sample in self.selection.samples)


@dataclass(frozen=True, kw_only=True)
class PolicyBatch:
    """excluded: (member, reason). no_signal: groups whose rewards are all equal."""

    groups: list[Group]
    members: list[BatchMember]
    excluded: list[tuple[Member, str]]
    no_signal: set[UUID]

    @property
    def rollouts(self) -> list[TrainRollout]:
        return [each.rollout for each in self.members]


def reward_of(member: Member, objective: Objective) -> float | None:
    """As judged or verified, or the placeholder where the run lets it count."""
    return placeholder_reward(member.rollout.outcome, objective) if member.reward is None else member.reward


def reason_to_exclude(member: Member, objective: Objective) -> str:
    """Why a member does not count; empty if it does."""
    rollout = member.rollout
    if member.disposition == Member.Disposition.EXCLUDED:
        return member.reason or "excluded"
    if member.include == Member.Include.DROP:
        return "dropped by a person"
    if rollout.state != Rollout.State.ENDED:
        return "still running when its group was trained"
    if member.reward is None and reward_of(member, objective) is not None:
        return ""
    if member.reward is None:
        return f"never scored: {rollout.get_outcome_display() or 'no outcome'}"
    by_person = member.effective_reward is not None or member.include == Member.Include.KEEP
    if not by_person and not (rollout.outcome and Outcome(rollout.outcome).in_baseline):
        return f"not in the baseline: {rollout.get_outcome_display() or 'no outcome'}"
    return ""


def load_policy_batch(step: OptimizerStep, config: RunConfig) -> PolicyBatch:
    """Read the step's groups as they are now."""
    groups = list(Group.objects.filter(step=step).order_by("index"))
    rows = Member.objects.filter(group__in=groups).select_related("rollout").order_by("group__index", "slot", "refill")
    valid: dict[UUID, list[Member]] = defaultdict(list)
    excluded: list[tuple[Member, str]] = []
    for member in rows:
        if reason := reason_to_exclude(member, config.objective):
            excluded.append((member, reason))
        else:
            valid[member.group_id].append(member)
    rewards = [[shaped_reward(member, config) for member in valid[group.id]] for group in groups]
    credits = batch_advantages(config.objective.advantage, rewards)
    nodes = load_nodes(member.rollout_id for members in valid.values() for member in members)
    members = [
        build_member(member, advantage, nodes[member.rollout_id], step.trains_version, config)
        for group, advantages in zip(groups, credits, strict=True)
        for member, advantage in zip(valid[group.id], advantages, strict=True)
    ]
    no_signal = {group.id for group, values in zip(groups, rewards, strict=True) if not differs(values)}
    return PolicyBatch(groups=groups, members=members, excluded=excluded, no_signal=no_signal)


def shaped_reward(member: Member, config: RunConfig) -> float:
    """What the baseline and the advantage count: the effective reward, less a soft penalty for length (DAPO).

    `zero` spares what a person judged.
    """
    reward = float(reward_of(member, config.objective) or 0.0)
    rollout = member.rollout
    if config.objective.overlong == "zero" and rollout.outcome in OVERLONG and member.effective_reward is None:
        return 0.0
    if config.objective.overlong != "soft":
        return reward
    return reward + overlong_penalty(
        rollout.sampled_tokens,
        limit=config.budgets.max_sampled_tokens,
        buffer=config.objective.overlong_buffer_tokens,
    )


def is_masked(member: Member, config: RunConfig) -> bool:
    """Cut off at a limit, so that its reward says little about its tokens."""
    return config.objective.overlong == "mask" and member.rollout.outcome in OVERLONG


def differs(rewards: Sequence[float]) -> bool:
    import torch

    return has_signal(torch.tensor(list(rewards), dtype=torch.float64))


def load_trained(step: OptimizerStep, config: RunConfig) -> list[TrainRollout]:
    """What a step that is done trained on, in the same order: for doing it again after a crash.

    The stored advantages count, not today's judgements.
    """
    rows = Member.objects.filter(group__step=step, disposition=Member.Disposition.TRAINED)
    return load_trained_members(list(rows.select_related("rollout").order_by("group__index", "slot", "refill")), config)


def load_trained_members(members: Sequence[Member], config: RunConfig) -> list[TrainRollout]:
    """The same of given members, in their order."""
    found = select_all(
        [member.rollout_id for member in members],
        max_samples=config.objective.max_samples_per_rollout,
        purpose="policy",
        roles=TRAINED_ROLES[config.objective.trained_roles],
    )
    return [
        build_rollout(
            member,
            () if is_masked(member, config) else found[member.rollout_id].samples,
            float(member.advantage or 0.0),
            config,
        )
        for member in members
    ]


def build_rollout(member: Member, samples: tuple[Sample, ...], advantage: float, config: RunConfig) -> TrainRollout:
    """What the trainer gets. Marks of turns are frozen once a step has the group, like the reward."""
    discount, weight = config.objective.turn_discount, config.objective.turn_mark_weight
    marks = read_marks(member.turn_marks) if weight else {}
    if discount == 1.0 and not marks:
        return TrainRollout(samples=samples, advantage=advantage)
    credited = tuple(
        turn_advantages(sample, advantage, discount=discount, marks=marks, mark_weight=weight) for sample in samples
    )
    return TrainRollout(samples=samples, advantage=advantage, turn_advantages=credited)


def read_marks(turn_marks: Mapping[str, bool]) -> dict[int, bool]:
    """JSON has text for keys."""
    return {int(node): right for node, right in turn_marks.items()}


def build_member(
    member: Member, advantage: float, nodes: list[NodeRecord], version: int, config: RunConfig
) -> BatchMember:
    selection = select_samples(
        nodes,
        rollout_id=member.rollout_id,
        max_samples=config.objective.max_samples_per_rollout,
        roles=TRAINED_ROLES[config.objective.trained_roles],
    )
    if is_masked(member, config):
        selection = replace(selection, samples=())
    oldest = min((node.oldest_version for node in nodes if node.oldest_version is not None), default=None)
    return BatchMember(
        member=member,
        advantage=advantage,
        selection=selection,
        staleness=None if oldest is None else version - oldest,
        rollout=build_rollout(member, selection.samples, advantage, config),
        masked=is_masked(member, config),
    )


def load_nodes(rollout_ids: Iterable[UUID]) -> dict[UUID, list[NodeRecord]]:
    """Nodes by rollout, in order of creation. One query; text and messages stay in the database."""
    found: dict[UUID, list[NodeRecord]] = defaultdict(list)
    fields = (
        "rollout_id", "index", "parent", "branch_role", "sampled", "trainable", "opener_length", "ids",
        "behaviour_logprobs", "version_spans",
    )  # fmt: skip
    rows = Node.objects.filter(rollout_id__in=list(rollout_ids)).only(*fields).order_by("rollout", "index")
    for node in rows.iterator(chunk_size=500):
        found[node.rollout_id].append(build_record(node))
    return found


def select_all(
    rollout_ids: Sequence[UUID], *, max_samples: int, purpose: Purpose, roles: Sequence[str] = ROLE_ORDER
) -> dict[UUID, Selection]:
    """Samples of several rollouts."""
    nodes = load_nodes(rollout_ids)
    return {
        rollout_id: select_samples(
            nodes[rollout_id], rollout_id=rollout_id, max_samples=max_samples, purpose=purpose, roles=roles
        )
        for rollout_id in rollout_ids
    }
