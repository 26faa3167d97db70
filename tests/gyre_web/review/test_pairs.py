"""Comparing two rollouts, judging the pair, and what becomes of the judgements."""

import orjson
import pytest

from environments.models import Node, Rollout
from gyre_web.audit.models import AuditEntry
from gyre_web.review import compare, pairs
from gyre_web.review.models import PairPreference
from gyre_web.review.services import InvalidLabel
from tests.gyre_web.factories import make_run, make_user
from training.models import Group

pytestmark = pytest.mark.django_db


@pytest.fixture
def group():
    make_run(steps=1, groups_per_step=2, rollouts_per_group=3)
    return Group.objects.filter(step__isnull=False).order_by("index").first()


@pytest.fixture
def two(group):
    a, b = [member.rollout for member in group.members.order_by("slot")[:2]]
    Node.objects.filter(rollout=b, index=2).update(message={"role": "assistant", "content": "```\ncat notes\n```"})
    return a, b


def judge(a, b, author, choice="a", key="k" * 8, reason=""):
    return pairs.save_preference(a=a, b=b, author=author, choice=choice, client_key=key, reason=reason)


def test_two_rollouts_are_aligned_at_their_first_different_action(two):
    found = compare.compare(*two)
    assert [entry.role for entry in found.common] == ["system", "user"]
    assert [(row.first, row.same) for row in found.rows] == [(True, False), (False, True), (False, True)]


def test_a_rollout_that_ended_earlier_leaves_its_side_empty(two):
    a, b = two
    Node.objects.filter(rollout=b, index__gte=3).delete()
    rows = compare.compare(a, b).rows
    assert [row.b is None for row in rows] == [False, True, True]


def test_patches_and_verifiers_are_compared_line_by_line(two):
    a, b = two
    a.diff, b.diff = "+one\n+two", "+one\n+three"
    a.reward_parts, b.reward_parts = {"tests": 1.0}, {"tests": 0.5, "style": 1.0}
    found = compare.compare(a, b)
    assert [line.text for line in found.patch if line.kind in ("add", "remove")] == ["-+two", "++three"]
    assert found.parts == [("tests", 1.0, 0.5), ("style", None, 1.0)]
    assert found.verifier == []


def test_a_judgement_is_the_same_whichever_side_of_the_screen_it_was_on(two):
    a, b = two
    ann, bob = make_user("ann", "reviewer"), make_user("bob", "reviewer")
    one, other = judge(a, b, ann, "a", "a" * 8), judge(b, a, bob, "b", "b" * 8)
    assert one.choice == other.choice
    [pair] = pairs.agreed_pairs()[0]
    assert (pair.chosen, pair.rejected, sorted(pair.judged_by)) == (a.pk, b.pk, ["ann", "bob"])
    assert [each["choice"] for each in pairs.describe_preferences(b, a)] == ["b", "b"]


def test_a_save_sent_twice_is_one_judgement_and_a_later_one_supersedes_it(two):
    a, b = two
    ann = make_user("ann", "reviewer")
    first = judge(a, b, ann, "a", "a" * 8)
    assert judge(a, b, ann, "a", "a" * 8).pk == first.pk
    second = judge(a, b, ann, "b", "b" * 8)
    first.refresh_from_db()
    assert first.superseded_by == second
    assert pairs.agreed_pairs()[0][0].chosen == b.pk
    assert AuditEntry.objects.filter(action="pair.judge").count() == 2


def test_disagreement_ties_and_neither_are_left_out_and_counted(two, group):
    a, b = two
    c = group.members.order_by("slot")[2].rollout
    ann, bob = make_user("ann", "reviewer"), make_user("bob", "reviewer")
    judge(a, b, ann, "a", "a" * 8)
    judge(a, b, bob, "b", "b" * 8)
    judge(a, c, ann, "tie", "c" * 8)
    assert pairs.agreed_pairs() == ([], {"people disagree": 1, "tie or neither": 1})


def test_pairs_that_cannot_be_judged_say_why(two):
    a, b = two
    ann = make_user("ann", "reviewer")
    other = Rollout.objects.exclude(task=a.task).first()
    live = Rollout.objects.filter(task=a.task).exclude(pk=a.pk).first()
    Rollout.objects.filter(pk=live.pk).update(state="running")
    live.refresh_from_db()
    for wrong, field in ((a, "b"), (other, "b"), (live, "b")):
        with pytest.raises(InvalidLabel) as refused:
            judge(a, wrong, ann)
        assert field in [error.field for error in refused.value.errors]
    with pytest.raises(InvalidLabel, match="choice"):
        judge(a, b, ann, "left")


def test_the_next_pair_is_one_that_this_person_has_not_judged(group):
    ann = make_user("ann", "reviewer")
    seen = set()
    for number in range(30):
        pair = pairs.next_pair(reviewer=ann, run_id=group.attempt.run_id)
        if pair is None:
            break
        assert frozenset(pair) not in seen
        seen.add(frozenset(pair))
        a, b = (Rollout.objects.get(pk=pk) for pk in pair)
        assert a.task_id == b.task_id
        judge(a, b, ann, "a", f"key-{number:06d}")
    assert pair is None
    assert len(seen) >= 3


def test_the_page_shows_both_and_takes_a_judgement(two, sign_in):
    a, b = two
    client = sign_in("reviewer")
    page = client.get(f"/compare?a={a.pk}&b={b.pk}").content.decode()
    assert "first different action" in page
    assert "cat notes" in page
    body = {"a": str(a.pk), "b": str(b.pk), "choice": "b", "reason": "shorter", "client_key": "x" * 12}
    answer = client.post("/compare/judge", orjson.dumps(body), content_type="application/json")
    assert orjson.loads(answer.content)["preference"]["choice"] == "b"
    assert PairPreference.objects.get().reason == "shorter"
    assert "prefers the right one" in client.get(f"/compare?a={a.pk}&b={b.pk}").content.decode()


def test_text_of_a_model_is_never_markup(two, sign_in):
    a, b = two
    Node.objects.filter(rollout=b, index=2).update(
        message={"role": "assistant", "content": "<script>alert(1)</script>"}
    )
    page = sign_in("viewer").get(f"/compare?a={a.pk}&b={b.pk}").content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_what_is_no_pair_is_said(two, sign_in):
    client = sign_in("viewer")
    assert client.get("/compare").status_code == 200
    assert client.get(f"/compare?a={two[0].pk}&b=x").status_code == 404


def test_the_number_of_queries_does_not_grow_with_the_messages(two, sign_in, django_assert_max_num_queries):
    client = sign_in("viewer")
    with django_assert_max_num_queries(16):
        client.get(f"/compare?a={two[0].pk}&b={two[1].pk}")
