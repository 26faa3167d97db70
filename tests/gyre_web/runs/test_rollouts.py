"""The rollout table and the group page: filters, search, saved filters, costs."""

import pytest
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext

from environments.models import Rollout
from gyre_web.runs.group_page import find_departures
from gyre_web.runs.models import SavedFilter
from gyre_web.runs.rollout_filter import apply_filter, order, parse_filter, rollouts_of
from tests.gyre_web.factories import make_run, make_user
from training.models import Group, Member

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(db):
    return make_run(steps=2, groups_per_step=3, owner=make_user())


def found(attempt, query: str) -> "list[Rollout]":
    wanted = parse_filter(QueryDict(query).dict())
    assert not wanted.errors, wanted.errors
    return list(order(apply_filter(rollouts_of([attempt]), wanted), wanted.sort))


def test_without_conditions_every_rollout_of_the_run_is_there_and_no_other(attempt):
    make_run(name="other", steps=1, nodes=False)

    assert len(found(attempt, "")) == 3 * 3 * 6


def test_demonstrations_belong_to_their_run(attempt):
    one = Rollout.objects.filter(pool=attempt.pool).first()
    Rollout.objects.filter(pk=one.pk).update(pool=f"{attempt.pool}-expert", purpose="demonstration")

    assert [rollout.pk for rollout in found(attempt, "purpose=demonstration")] == [one.pk]


def test_each_condition_keeps_only_what_it_says(attempt):
    assert {r.reward for r in found(attempt, "reward_min=1")} == {1.0}
    assert {r.member.group.step.number for r in found(attempt, "step=2")} == {2}
    assert all(r.sampled_tokens >= 300 for r in found(attempt, "tokens_min=300"))
    assert all(r.oldest_version <= 1 <= r.newest_version for r in found(attempt, "version=1"))
    assert all(r.flags for r in found(attempt, "flagged=yes"))
    assert {r.state for r in found(attempt, "state=live")} == {"running", "queued"}
    assert {r.task.family for r in found(attempt, "family=create")} <= {"create"}
    assert all((r.ended_at - r.started_at).total_seconds() >= 20 for r in found(attempt, "seconds_min=20"))
    assert {r.member.disposition for r in found(attempt, "disposition=trained")} == {"trained"}


def test_search_looks_into_messages_of_every_role(attempt):
    assert found(attempt, "q=sed+-i+%2Fharbour%2Fd")
    assert not found(attempt, "q=nowhere+in+any+message")


def test_a_percent_sign_in_a_search_is_a_percent_sign(attempt):
    assert not found(attempt, "q=%25")


def test_reviewed_means_that_somebody_labelled_it(attempt):
    from gyre_web.review.models import Label

    rollout = found(attempt, "")[0]
    Label.objects.create(rollout=rollout, author_name="ada", verdict="success", client_key="k")

    assert [r.pk for r in found(attempt, "reviewed=yes")] == [rollout.pk]
    assert len(found(attempt, "reviewed=no")) == 53


def test_a_wrong_condition_is_named_and_matches_nothing(attempt, sign_in):
    assert parse_filter({"reward_min": "much"}).errors == {"reward_min": ["Enter a number."]}

    page = sign_in("viewer").get(f"/runs/{attempt.run_id}/rollouts?reward_min=much").content.decode()
    assert "Enter a number." in page


def test_sorting_puts_missing_values_last(attempt):
    rewards = [rollout.reward for rollout in found(attempt, "sort=reward")]

    assert rewards[-1] is None
    scored = [reward for reward in rewards if reward is not None]
    assert scored == sorted(scored)


def test_a_filter_can_be_saved_and_deleted_by_its_owner_only(attempt, sign_in):
    reviewer = sign_in("reviewer")
    reviewer.post(f"/runs/{attempt.run_id}/filters", {"name": "solved", "reward_min": "1", "sort": "-reward"})
    saved = SavedFilter.objects.get()
    assert saved.query == {"reward_min": "1", "sort": "-reward"}
    assert b"reward_min=1" in reviewer.get(f"/runs/{attempt.run_id}/rollouts").content

    assert sign_in("operator").post(f"/filters/{saved.pk}/delete").status_code == 403
    reviewer.post(f"/filters/{saved.pk}/delete")
    assert not SavedFilter.objects.exists()


def test_the_table_costs_the_same_for_any_number_of_rows(attempt, sign_in):
    from django.db import connection

    client = sign_in("viewer")
    client.get(f"/runs/{attempt.run_id}/rollouts")
    counts = []
    for query in ("?step=1", ""):
        with CaptureQueriesContext(connection) as queries:
            client.get(f"/runs/{attempt.run_id}/rollouts{query}")
        counts.append(len(queries))

    assert counts[0] == counts[1] <= 12


def test_a_group_is_shown_side_by_side_with_what_each_did(attempt, sign_in):
    group = Group.objects.filter(attempt=attempt).first()

    page = sign_in("viewer").get(f"/groups/{group.pk}").content.decode()

    assert page.count('class="member"') == 6
    assert "sed -i" in page


def test_the_first_turn_that_most_did_not_take_is_the_departure():
    assert find_departures([["a", "b"], ["a", "c"], ["a", "b", "d"]]) == [None, 1, None]
    assert find_departures([["a"], ["a"]]) == [None, None]
    assert find_departures([["a"], ["b"]]) == [0, 0]


def test_messages_full_of_markup_are_only_text(attempt, sign_in):
    from environments.models import Node

    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    Node.objects.update(message={"role": "assistant", "content": evil})
    Rollout.objects.update(error=evil, flags=[{"kind": evil, "evidence": evil}])
    Member.objects.update(reason=evil)
    group = Group.objects.filter(attempt=attempt).first()
    for path in (f"/groups/{group.pk}", f"/runs/{attempt.run_id}/rollouts", f"/runs/{attempt.run_id}"):
        page = sign_in("viewer").get(path).content.decode()
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path
