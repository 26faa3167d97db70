"""What becomes of members and groups as rollouts end, by hand."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from environments.models import Outcome
from training.config import Objective, ReviewGate, Schedule
from training.models import Group
from training.scheduling.settling import (
    GroupView,
    MemberView,
    build_group_change,
    build_member_changes,
    placeholder_reward,
)

START = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def member(slot: int, **changes) -> MemberView:
    state = {
        "id": slot,
        "slot": slot,
        "refill": 0,
        "rollout_id": UUID(int=slot),
        "ended": True,
        "outcome": "completed",
        "reward": 1.0,
        "overridden": False,
        "include": "as_scored",
        "disposition": "pending",
        "hold": False,
        "hold_until": None,
        "flagged": False,
    }
    return MemberView(**{**state, **changes})


def unfinished(slot: int, **changes) -> MemberView:
    return member(slot, ended=False, outcome="", reward=None, **changes)


def group(*members: MemberView, size: int = 3, refilling: bool = True) -> GroupView:
    return GroupView(size=size, created_at=START, members=members, refilling=refilling)


def changes(view: GroupView, *, gate: ReviewGate | None = None, at_s: float = 0, **schedule):
    now = START + timedelta(seconds=at_s)
    return build_member_changes(view, gate=gate or ReviewGate(), schedule=Schedule(**schedule), now=now)


def change(view: GroupView, *, at_s: float = 0, **schedule):
    return build_group_change(view, schedule=Schedule(**schedule), now=START + timedelta(seconds=at_s))


def test_a_group_whose_members_all_ended_is_ready():
    assert change(group(member(0), member(1, reward=0.0), member(2))).state == Group.State.READY


def test_equal_rewards_are_visibly_no_signal():
    assert change(group(member(0), member(1), member(2))).no_signal
    assert not change(group(member(0), member(1, reward=0.5), member(2))).no_signal


def test_a_group_with_a_running_or_missing_member_stays_open():
    assert change(group(member(0), member(1), unfinished(2))).state == Group.State.OPEN
    assert change(group(member(0), member(1))).state == Group.State.OPEN
    assert group(member(0), member(1)).missing == [(2, 0)]


@pytest.mark.parametrize("outcome", [o for o in Outcome if not o.in_baseline])
def test_what_could_not_be_scored_is_excluded_with_its_reason_never_a_zero(outcome):
    [only] = changes(group(member(0), member(1), member(2, outcome=outcome, reward=None)))
    assert (only.member_id, only.kind) == (2, "excluded")
    assert Outcome(outcome).label in only.reason


def test_a_placeholder_counts_only_where_the_run_says_so():
    assert placeholder_reward("image_unavailable", Objective()) is None
    assert placeholder_reward("image_unavailable", Objective(image_unavailable="zero")) == 0.0
    assert placeholder_reward("verifier_error", Objective(image_unavailable="zero")) is None
    placed = member(2, outcome="image_unavailable", reward=0.0, placeholder=True)
    assert changes(group(member(0), member(1), placed)) == []
    decision = change(group(member(0), member(1), placed))
    assert (decision.state, decision.no_signal) == (Group.State.READY, False)


def test_an_excluded_member_is_refilled_twice_and_no_more():
    lost = {"outcome": "lost", "reward": None, "disposition": "excluded"}
    first = group(member(0), member(1), member(2, **lost))
    assert first.missing == [(2, 1)]
    third = group(*first.members, member(2, refill=1, id=3, **lost), member(2, refill=2, id=4, **lost))
    assert third.missing == []
    assert change(third).state == Group.State.READY


def test_who_a_person_dropped_is_excluded_and_not_refilled():
    view = group(member(0), member(1), member(2, include="drop"))
    assert changes(view)[0].reason == "dropped by a person"
    after = group(member(0), member(1), member(2, include="drop", disposition="excluded"))
    assert after.missing == []


def test_while_an_attempt_stops_nothing_is_refilled():
    lost = member(2, outcome="lost", reward=None, disposition="excluded")
    assert change(group(member(0), member(1), lost, refilling=False)).state == Group.State.READY


def test_a_group_with_too_few_members_is_excluded_with_a_reason():
    dropped = {"include": "drop", "disposition": "excluded"}
    decision = change(group(member(0), member(1, **dropped), member(2, **dropped)))
    assert decision.state == Group.State.EXCLUDED
    assert "only 1 of 3" in decision.reason


@pytest.mark.parametrize(
    ("gate", "view", "held"),
    [
        ({"mode": "off"}, member(2), False),
        ({"mode": "all"}, member(2), True),
        ({"mode": "flagged"}, member(2), False),
        ({"mode": "flagged"}, member(2, flagged=True), True),
        ({"mode": "sample", "share": 1.0}, member(2), True),
        ({"mode": "all"}, unfinished(2), False),
        ({"mode": "all"}, member(2, hold_until=START), False),  # was held before, and judged
    ],
)
def test_the_review_gate_holds_a_member_once_it_ended(gate, view, held):
    found = changes(group(view), gate=ReviewGate(**gate))
    assert [item.kind for item in found] == (["held"] if held else [])


def test_a_held_member_blocks_its_group():
    decision = change(group(member(0), member(1), member(2, hold=True, disposition="held")))
    assert decision.state == Group.State.HELD
    assert "1 of 3" in decision.reason


@pytest.mark.parametrize(("rule", "kind"), [("train", "released"), ("exclude", "excluded"), ("wait", None)])
def test_a_reviews_deadline_follows_the_runs_rule(rule, kind):
    held = member(0, hold=True, disposition="held", hold_until=START + timedelta(seconds=60))
    gate = ReviewGate(mode="all", deadline_s=60, at_deadline=rule)
    assert changes(group(held), gate=gate, at_s=59) == []
    assert [item.kind for item in changes(group(held), gate=gate, at_s=60)] == ([kind] if kind else [])


def test_at_its_deadline_a_group_goes_on_without_who_is_late_if_enough_are_there():
    view = group(member(0), member(1), unfinished(2))
    assert changes(view, at_s=99, group_deadline_s=100) == []
    [late] = changes(view, at_s=100, group_deadline_s=100)
    assert (late.member_id, late.kind, late.cancel) == (2, "excluded", True)
    assert changes(group(member(0), unfinished(1), unfinished(2)), at_s=100, group_deadline_s=100) == []


def test_at_its_deadline_a_group_does_not_wait_for_members_that_were_never_dispatched():
    view = group(member(0), member(1))
    assert change(view, at_s=99, group_deadline_s=100).state == Group.State.OPEN
    assert change(view, at_s=100, group_deadline_s=100).state == Group.State.READY


def test_a_persons_reward_makes_an_unscored_member_count():
    view = group(member(0), member(1), member(2, outcome="verifier_error", reward=0.5, overridden=True))
    assert changes(view) == []
    assert change(view).state == Group.State.READY
