"""Settle the groups in flight: read their rows, write what training.scheduling.settling finds.

From:  training.scheduling.attempts, each round.
To:    Member.disposition, Group.state, RunEvents; requests to end rollouts that are late.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from environments.models import Rollout
from environments.rollouts import request_cancel
from training.config import RunConfig
from training.events import record_event
from training.models import Attempt, Group, Member, RunEvent
from training.scheduling.leadership import Leadership
from training.scheduling.settling import (
    GroupView,
    MemberChange,
    MemberView,
    build_group_change,
    build_member_changes,
    placeholder_reward,
)

IN_FLIGHT = (Group.State.OPEN, Group.State.READY, Group.State.HELD)
UNSETTLED = (Group.State.OPEN, Group.State.HELD)


def load_views(attempt: Attempt, config: RunConfig, groups: Iterable[Group]) -> dict[UUID, GroupView]:
    """The groups with their members, in one query."""
    groups = list(groups)
    members: dict[UUID, list[MemberView]] = defaultdict(list)
    rows = Member.objects.filter(group__in=groups).values_list(
        "group_id", "id", "slot", "refill", "rollout_id", "rollout__state", "rollout__outcome", "rollout__reward",
        "effective_reward", "include", "disposition", "hold", "hold_until", "rollout__flags",
    )  # fmt: skip
    for group_id, pk, slot, refill, rollout_id, state, outcome, reward, override, include, disposition, *rest in rows:
        hold, hold_until, flags = rest
        judged = reward if override is None else override
        placeholder = None if judged is not None else placeholder_reward(outcome, config.objective)
        view = MemberView(
            id=pk,
            slot=slot,
            refill=refill,
            rollout_id=rollout_id,
            ended=state == Rollout.State.ENDED,
            outcome=outcome,
            reward=judged if placeholder is None else placeholder,
            overridden=override is not None,
            include=include,
            disposition=disposition,
            hold=hold,
            hold_until=hold_until,
            flagged=bool(flags),
            placeholder=placeholder is not None,
        )
        members[group_id].append(view)
    return {
        group.id: GroupView(
            size=config.tasks.rollouts_per_group,
            created_at=group.created_at,
            members=members[group.id],
            refilling=attempt.wanted in (Attempt.Wanted.RUN, Attempt.Wanted.PAUSE),
        )
        for group in groups
    }


def settle_groups(leadership: Leadership, attempt: Attempt, config: RunConfig, now: datetime) -> None:
    """Exclude, hold and release members; make groups ready, held or excluded. Each group is one act."""
    groups = list(Group.objects.filter(attempt=attempt, state__in=UNSETTLED))
    views = load_views(attempt, config, groups)
    for group in groups:
        if _would_change(group, views[group.id], config, now):
            with leadership.act(attempt.id) as current:
                _settle(current, group.id, config, now)


def _would_change(group: Group, view: GroupView, config: RunConfig, now: datetime) -> bool:
    if build_member_changes(view, gate=config.review_gate, schedule=config.schedule, now=now):
        return True
    change = build_group_change(view, schedule=config.schedule, now=now)
    return (change.state, change.reason) != (group.state, group.reason)


def _settle(attempt: Attempt, group_id: UUID, config: RunConfig, now: datetime) -> None:
    """Under the group's lock, so that a person's judgement comes wholly before or wholly after."""
    group = Group.objects.select_for_update(no_key=True).get(pk=group_id)
    if group.state not in UNSETTLED:
        return
    view = load_views(attempt, config, [group])[group.id]
    for change in build_member_changes(view, gate=config.review_gate, schedule=config.schedule, now=now):
        _apply_member_change(attempt, group, change)
    view = load_views(attempt, config, [group])[group.id]
    decision = build_group_change(view, schedule=config.schedule, now=now)
    if (decision.state, decision.reason) == (group.state, group.reason):
        return
    group.state, group.reason, group.no_signal = decision.state, decision.reason, decision.no_signal
    group.ready_at = now if decision.state == Group.State.READY else None
    group.save(update_fields=["state", "reason", "no_signal", "ready_at"])
    if decision.state == Group.State.EXCLUDED:
        exclude_group(attempt, group, decision.reason)
    elif decision.state == Group.State.HELD:
        record_event(attempt, "group_held", f"Group {group.index}: {decision.reason}.", group=str(group.id))


def exclude_group(attempt: Attempt, group: Group, reason: str) -> None:
    """The group, and whoever of its members was not excluded yet, with a reason."""
    Group.objects.filter(pk=group.pk).update(state=Group.State.EXCLUDED, reason=reason)
    left = group.members.filter(disposition__in=(Member.Disposition.PENDING, Member.Disposition.HELD))
    left.update(disposition=Member.Disposition.EXCLUDED, reason="its group was excluded", hold=False)
    text = f"Group {group.index} was excluded: {reason}."
    record_event(attempt, "group_excluded", text, RunEvent.Level.WARNING, group=str(group.id))


def _apply_member_change(attempt: Attempt, group: Group, change: MemberChange) -> None:
    member = Member.objects.get(pk=change.member_id)
    ids: dict[str, Any] = {"group": str(group.id), "rollout": str(member.rollout_id)}
    where = f"Group {group.index}, member {member.slot}"
    match change.kind:
        case "excluded":
            member.disposition, member.reason, member.hold = Member.Disposition.EXCLUDED, change.reason, False
            text = f"{where} was excluded: {change.reason}."
            record_event(attempt, "member_excluded", text, RunEvent.Level.WARNING, **ids)
        case "held":
            member.disposition, member.hold, member.hold_reason = Member.Disposition.HELD, True, change.reason
            member.hold_until = change.hold_until
        case "released":
            member.disposition, member.hold, member.reason = Member.Disposition.PENDING, False, change.reason
            record_event(attempt, "member_released", f"{where} goes on: {change.reason}.", **ids)
    member.save(update_fields=["disposition", "reason", "hold", "hold_reason", "hold_until"])
    if change.cancel:
        rollout_id = member.rollout_id
        transaction.on_commit(lambda: request_cancel(rollout_id), robust=True)
