"""What becomes of a group's members and of the group, as rollouts end. Pure: the group as it is, changes out.

From:  training.scheduling.groups, which reads rows and writes the changes.
Holds: nobody is dropped silently: each exclusion has a reason; a verifier error is never a zero; a member that waits
       for a person blocks its group; a slot is refilled at most twice.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from environments.models import Outcome
from training.config import Objective, ReviewGate, Schedule
from training.models import Group, Member

MAX_REFILLS = 2


def placeholder_reward(outcome: str, objective: Objective) -> float | None:
    """The reward of what could not be evaluated, where the run lets it count; None: it does not."""
    counts = bool(outcome) and objective.image_unavailable == "zero"
    return Outcome(outcome).placeholder_reward if counts else None


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """A member and what settling needs of its rollout."""

    id: int
    slot: int
    refill: int
    rollout_id: UUID
    ended: bool
    outcome: str
    reward: float | None
    """As judged: the override where there is one."""
    overridden: bool
    include: str
    disposition: str
    hold: bool
    hold_until: datetime | None
    """Set once the review gate held it, and kept: a member is gated once."""
    flagged: bool
    placeholder: bool = False
    """Nothing could be evaluated, and the run lets the placeholder count as its reward."""

    @property
    def is_scored(self) -> bool:
        """Counts in the baseline: its outcome does, or a person gave it a reward."""
        by_person = self.overridden or self.include == Member.Include.KEEP or self.placeholder
        return self.reward is not None and (by_person or (bool(self.outcome) and Outcome(self.outcome).in_baseline))

    @property
    def is_excluded(self) -> bool:
        return self.disposition == Member.Disposition.EXCLUDED

    @property
    def is_dropped(self) -> bool:
        return self.include == Member.Include.DROP


@dataclass(frozen=True, kw_only=True)
class MemberChange:
    member_id: int
    kind: Literal["excluded", "held", "released"]
    reason: str
    hold_until: datetime | None = None
    cancel: bool = False
    """The rollout still runs and shall end."""


@dataclass(frozen=True, kw_only=True)
class GroupView:
    size: int
    """N"""
    created_at: datetime
    members: Sequence[MemberView]
    refilling: bool
    """The attempt still dispatches; false while it stops."""

    @property
    def current(self) -> list[MemberView]:
        """Of each slot its last member."""
        last: dict[int, MemberView] = {}
        for member in sorted(self.members, key=lambda m: m.refill):
            last[member.slot] = member
        return [last[slot] for slot in sorted(last)]

    @property
    def missing(self) -> list[tuple[int, int]]:
        """(slot, refill) of the places to be filled: never dispatched, or given back by an excluded member."""
        if not self.refilling:
            return []
        current = {member.slot: member for member in self.current}
        empty = [(slot, 0) for slot in range(self.size) if slot not in current]
        return empty + [(m.slot, m.refill + 1) for m in current.values() if may_refill(m)]


def may_refill(member: MemberView) -> bool:
    """It was excluded because nothing could be scored, not because a person or a policy said so."""
    return (
        member.is_excluded
        and member.ended
        and not member.is_scored
        and not member.is_dropped
        and member.refill < MAX_REFILLS
    )


def build_member_changes(
    group: GroupView, *, gate: ReviewGate, schedule: Schedule, now: datetime
) -> list[MemberChange]:
    """What follows for single members from what is known now."""
    changes = [
        change
        for member in group.current
        if member.ended and not member.is_excluded and (change := _settle_member(member, gate, now))
    ]
    return changes or _at_deadline(group, schedule, now)


def _settle_member(member: MemberView, gate: ReviewGate, now: datetime) -> MemberChange | None:
    if member.is_dropped:
        return MemberChange(member_id=member.id, kind="excluded", reason="dropped by a person")
    if not member.is_scored:
        words = Outcome(member.outcome).label if member.outcome else "no outcome"
        return MemberChange(member_id=member.id, kind="excluded", reason=f"not scored: {words}")
    if member.hold:
        return _overdue(member, gate, now)
    if member.hold_until is None and (why := _gated(member, gate)):
        until = now + timedelta(seconds=gate.deadline_s)
        return MemberChange(member_id=member.id, kind="held", reason=why, hold_until=until)
    return None


def _gated(member: MemberView, gate: ReviewGate) -> str:
    """Why the review gate holds it, or nothing. The sample is the rollout's own chance: the same after a restart."""
    if gate.mode == "all":
        return "every rollout is reviewed"
    if gate.mode == "flagged" and member.flagged:
        return "flagged"
    if gate.mode == "sample" and random.Random(f"review:{member.rollout_id}").random() < gate.share:
        return "in the sample that is reviewed"
    return ""


def _overdue(member: MemberView, gate: ReviewGate, now: datetime) -> MemberChange | None:
    if member.hold_until is None or member.hold_until > now or gate.at_deadline == "wait":
        return None
    if gate.at_deadline == "exclude":
        return MemberChange(member_id=member.id, kind="excluded", reason="nobody reviewed it before its deadline")
    return MemberChange(member_id=member.id, kind="released", reason="nobody reviewed it before its deadline")


def _at_deadline(group: GroupView, schedule: Schedule, now: datetime) -> list[MemberChange]:
    """A group at its deadline goes on without who is late, if enough are there; else it waits for more."""
    valid = [member for member in group.current if member.ended and not member.is_excluded]
    late = [member for member in group.current if not member.ended]
    over = now >= group.created_at + timedelta(seconds=schedule.group_deadline_s)
    if not over or not late or len(valid) < schedule.min_members:
        return []
    return [
        MemberChange(member_id=m.id, kind="excluded", reason="unfinished at its group's deadline", cancel=True)
        for m in late
    ]


@dataclass(frozen=True, kw_only=True)
class GroupChange:
    state: Group.State
    reason: str = ""
    no_signal: bool = False


def build_group_change(group: GroupView, *, schedule: Schedule, now: datetime) -> GroupChange:
    """The group's state once its members' changes are written."""
    active = [member for member in group.current if not member.is_excluded]
    over = now >= group.created_at + timedelta(seconds=schedule.group_deadline_s)
    enough = len(active) >= schedule.min_members
    if any(not member.ended for member in active) or (group.missing and not (over and enough)):
        return GroupChange(state=Group.State.OPEN)
    held = sum(member.hold for member in active)
    if held:
        return GroupChange(state=Group.State.HELD, reason=f"{held} of {len(active)} members wait for review")
    if not enough:
        reason = f"only {len(active)} of {group.size} members can be trained; {schedule.min_members} are needed"
        return GroupChange(state=Group.State.EXCLUDED, reason=reason)
    rewards = {member.reward for member in active}
    return GroupChange(state=Group.State.READY, no_signal=len(rewards) == 1)
