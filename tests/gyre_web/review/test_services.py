"""A judgement: stored once, audited, and brought into training exactly when that is still possible."""

from typing import Any

import pytest

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.audit.models import AuditEntry
from gyre_web.review.models import Label
from gyre_web.review.services import InvalidLabel, Judgement, save_label
from tests.gyre_web.watch.makers import make_member, make_rollout, make_user
from training.models import Member, OptimizerStep

pytestmark = pytest.mark.django_db


def judge(rollout: Rollout, author: User, *, client_key: str = "0123456789abcdef", **fields: Any) -> Label:
    return save_label(rollout=rollout, author=author, judgement=Judgement(client_key=client_key, **fields))


def finished(**member_fields: Any) -> tuple[Rollout, Member]:
    rollout = make_rollout(state="ended", outcome="completed", reward=1.0)
    return rollout, make_member(rollout, **member_fields)


def test_an_override_before_the_group_is_eaten_is_what_training_uses():
    rollout, member = finished()
    label = judge(rollout, make_user("reviewer"), verdict="hack", reward=0.0, reason="edits the test")
    member.refresh_from_db()
    assert label.effect == Label.Effect.TRAINS
    assert member.reward == 0.0
    assert rollout.reward == 1.0


def test_an_override_after_the_group_was_eaten_is_recorded_and_said_to_be_too_late():
    rollout, member = finished()
    step = OptimizerStep.objects.create(attempt=member.group.attempt, number=1, trains_version=0)
    member.group.step, member.group.state = step, "eaten"
    member.group.save()
    label = judge(rollout, make_user("reviewer"), reward=0.0, reason="late")
    member.refresh_from_db()
    assert label.effect == Label.Effect.TOO_LATE
    assert member.effective_reward is None


def test_drop_takes_the_member_out_and_a_label_releases_the_hold():
    rollout, member = finished(hold=True, hold_reason="flagged")
    judge(rollout, make_user("reviewer"), keep="drop", reason="wrong task")
    member.refresh_from_db()
    assert (member.include, member.hold) == ("drop", False)


def test_a_rollout_outside_of_training_has_no_effect_but_is_kept():
    label = judge(make_rollout(state="ended"), make_user("reviewer"), verdict="success")
    assert label.effect == Label.Effect.NONE


def test_a_save_that_is_sent_again_is_one_label():
    rollout, _ = finished()
    author = make_user("reviewer")
    first = judge(rollout, author, verdict="success")
    again = judge(rollout, author, verdict="success")
    assert first.pk == again.pk
    assert Label.objects.count() == AuditEntry.objects.filter(action="label.save").count() == 1


def test_a_key_of_somebody_elses_label_is_refused():
    rollout, _ = finished()
    judge(rollout, make_user("reviewer"), verdict="success")
    with pytest.raises(InvalidLabel, match="client_key"):
        judge(rollout, make_user("reviewer"), verdict="failure")


def test_the_latest_label_of_a_person_supersedes_the_earlier_and_nothing_is_overwritten():
    rollout, member = finished()
    ada, bob = make_user("reviewer"), make_user("reviewer")
    first = judge(rollout, ada, reward=0.0, reason="wrong", client_key="first-key")
    other = judge(rollout, bob, verdict="partial", client_key="other-key")
    second = judge(rollout, ada, verdict="success", client_key="second-key")
    first.refresh_from_db()
    other.refresh_from_db()
    member.refresh_from_db()
    assert first.superseded_by == second
    assert first.reward == 0.0
    assert other.superseded_by is None
    assert member.effective_reward is None


def test_who_changed_what_from_what_and_why_is_in_the_audit_trail():
    rollout, _ = finished()
    ada = make_user("reviewer", "ada")
    judge(rollout, ada, verdict="success", client_key="first-key")
    judge(rollout, ada, reward=0.25, reason="half of it", client_key="second-key")
    entry = AuditEntry.objects.filter(action="label.save").latest("id")
    assert (entry.user_name, entry.object_id, entry.reason) == ("ada", str(rollout.pk), "half of it")
    assert entry.before
    assert entry.before["verdict"] == "success"
    assert entry.after
    assert entry.after["reward"] == 0.25


@pytest.mark.parametrize(
    ("fields", "names"),
    [({"reward": 0.0}, "reason"), ({"keep": "drop"}, "reason"), ({"verdict": "great"}, "verdict"), ({"verdict": "success", "keep": "x"}, "keep"),
     ({"verdict": "success", "client_key": "short"}, "client_key"), ({"reward": float("nan"), "reason": "x"}, "reward"), ({}, "verdict"),
     ({"note": "a\x00b"}, "note")],
)  # fmt: skip
def test_a_wrong_judgement_names_its_field_and_stores_nothing(fields, names):
    rollout, _ = finished()
    with pytest.raises(InvalidLabel) as caught:
        judge(rollout, make_user("reviewer"), **fields)
    assert names in [error.field for error in caught.value.errors]
    assert not Label.objects.exists()


def test_everything_wrong_is_said_at_once():
    with pytest.raises(InvalidLabel) as caught:
        judge(finished()[0], make_user("reviewer"), verdict="great", keep="maybe", client_key="")
    assert {error.field for error in caught.value.errors} == {"verdict", "keep", "client_key"}
