"""Read one group: its rollouts side by side, and where each first departs from the others.

Holds: four queries, whatever the number of members; excluded and refilled members are shown too.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.shortcuts import get_object_or_404

from environments.models import Node
from training.models import Group, Member

MAX_TURNS = 40
MAX_CHARS = 4000


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One assistant message. departs: the first that fewer than half of the other members also took."""

    number: int
    text: str
    departs: bool


@dataclass(frozen=True, kw_only=True)
class MemberColumn:
    member: Member
    reward: float | None
    width: int
    """Of the reward bar, 0 to 100."""
    turns: list[Turn]
    num_more_turns: int


def load_group(group_id: UUID) -> Group:
    return get_object_or_404(Group.objects.select_related("attempt__run", "task", "step"), pk=group_id)


def load_columns(group: Group) -> list[MemberColumn]:
    members = list(group.members.select_related("rollout").defer("token_stats", "rollout__harness_output"))
    turns = load_turns([member.rollout_id for member in members])
    departures = find_departures([turns.get(member.rollout_id, []) for member in members])
    return [
        MemberColumn(
            member=member,
            reward=member.reward,
            width=round(100 * min(1.0, max(0.0, member.reward or 0.0))),
            turns=[
                Turn(number=number, text=text[:MAX_CHARS], departs=number == departure)
                for number, text in enumerate(turns.get(member.rollout_id, [])[:MAX_TURNS])
            ],
            num_more_turns=max(0, len(turns.get(member.rollout_id, [])) - MAX_TURNS),
        )
        for member, departure in zip(members, departures, strict=True)
    ]


def load_turns(rollout_ids: list[UUID]) -> dict[UUID, list[str]]:
    """Assistant messages of the main branch, in order."""
    rows = Node.objects.filter(rollout__in=rollout_ids, sampled=True, branch_role=Node.BranchRole.MAIN)
    found: dict[UUID, list[str]] = {}
    for rollout_id, message in rows.order_by("rollout", "index").values_list("rollout_id", "message"):
        found.setdefault(rollout_id, []).append(message_text(message))
    return found


def message_text(message: dict[str, Any]) -> str:
    calls = [f"{call.get('name')} {call.get('arguments')}" for call in message.get("tool_calls") or []]
    return "\n".join([str(message.get("content") or ""), *calls]).strip()


def find_departures(turns: list[list[str]]) -> list[int | None]:
    """For each member the number of its first turn that is not what most members (that got so far) did."""
    departures: list[int | None] = [None] * len(turns)
    for number in range(max((len(own) for own in turns), default=0)):
        counted = Counter(own[number] for own in turns if len(own) > number)
        if sum(counted.values()) < 2:
            break
        common, times = counted.most_common(1)[0]
        for member, own in enumerate(turns):
            if departures[member] is None and len(own) > number and (own[number] != common or times < 2):
                departures[member] = number
    return departures
