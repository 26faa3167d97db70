"""Judging over HTTP: rights, acknowledgement, queues, reservations."""

from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from environments.models import Rollout
from gyre_web.review.models import Label, Queue, Reservation
from gyre_web.review.services import create_queue, reserve_next, skip_item
from gyre_web.runs.models import SavedFilter
from tests.gyre_web.watch.makers import make_member, make_rollout, make_user

pytestmark = pytest.mark.django_db


def client_of(role: str) -> Client:
    client = Client()
    client.force_login(make_user(role))
    return client


def post(client: Client, rollout: Rollout, **data: Any) -> Any:
    body = {"verdict": "success", "client_key": "0123456789abcdef", **data}
    return client.post(
        reverse("review:save_label", args=[rollout.pk]), orjson.dumps(body), content_type="application/json"
    )


def make_queue(**fields: Any) -> Queue:
    author = make_user("reviewer")
    query = fields.pop("query", {})
    return create_queue(
        name="q", saved_filter=SavedFilter.objects.create(name="f", query=query), author=author, **fields
    )


def finished(**fields: Any) -> Rollout:
    return make_rollout(**{"state": "ended", "outcome": "completed", "reward": 1.0, **fields})


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("reviewer", 200), ("operator", 200), ("admin", 200)])
def test_reviewers_and_above_may_judge(role, status):
    assert post(client_of(role), finished()).status_code == status


def test_a_stranger_may_not_judge():
    assert post(Client(), finished()).status_code == 302
    assert not Label.objects.exists()


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("reviewer", 200)])
def test_queues_are_for_reviewers(role, status):
    client = client_of(role)
    assert client.get(reverse("review:index")).status_code == status
    assert client.get(reverse("review:next", args=[make_queue().pk])).status_code == status


def test_only_operators_close_a_queue():
    queue = make_queue()
    assert client_of("reviewer").post(reverse("review:close", args=[queue.pk])).status_code == 403
    assert client_of("operator").post(reverse("review:close", args=[queue.pk])).status_code == 302
    assert client_of("reviewer").get(reverse("review:next", args=[queue.pk])).status_code == 404


def test_a_save_is_acknowledged_with_its_effect():
    rollout = finished()
    make_member(rollout)
    body = orjson.loads(post(client_of("reviewer"), rollout, reward=0.5, reason="half").content)
    assert body["label"]["effect"] == "trains"
    assert body["label"]["effect_text"] == "changes what is trained"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"reward": "1"}', b'{"reward": true}', b'{"verdict": 3}'])
def test_a_body_that_is_not_a_judgement_is_refused_by_field(body):
    response = client_of("reviewer").post(
        reverse("review:save_label", args=[finished().pk]), body, content_type="application/json"
    )
    assert response.status_code == 422
    assert orjson.loads(response.content)["errors"][0]["field"] in ("body", "reward", "verdict")


def test_a_forged_request_without_the_token_is_refused():
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("reviewer"))
    assert post(client, finished()).status_code == 403


def test_the_next_item_stays_with_its_reviewer_until_it_is_judged():
    first, second = finished(), finished()
    queue = make_queue()
    ada = make_user("reviewer")
    client = Client()
    client.force_login(ada)
    page = reverse("review:next", args=[queue.pk])
    assert f'data-id="{first.pk}"' in client.get(page).content.decode()
    assert f'data-id="{first.pk}"' in client.get(page).content.decode()
    assert post(client, first).status_code == 200
    assert f'data-id="{second.pk}"' in client.get(page).content.decode()


def test_two_reviewers_are_never_given_the_same_item():
    first, second = finished(), finished()
    queue = make_queue()
    given = [reserve_next(queue=queue, reviewer=make_user("reviewer")) for _ in range(3)]
    assert [item.rollout_id if item else None for item in given] == [first.pk, second.pk, None]


def test_a_reservation_that_ran_out_is_given_to_another():
    rollout = finished()
    queue = make_queue()
    reserve_next(queue=queue, reviewer=make_user("reviewer"))
    Reservation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    item = reserve_next(queue=queue, reviewer=make_user("reviewer"))
    assert item is not None
    assert item.rollout_id == rollout.pk


def test_a_skipped_item_goes_to_others_and_does_not_come_back():
    first, second = finished(), finished()
    queue = make_queue()
    ada = make_user("reviewer")
    reserve_next(queue=queue, reviewer=ada)
    skip_item(queue=queue, rollout_id=first.pk, reviewer=ada)
    mine, other = reserve_next(queue=queue, reviewer=ada), reserve_next(queue=queue, reviewer=make_user("reviewer"))
    assert mine is not None
    assert other is not None
    assert (mine.rollout_id, other.rollout_id) == (second.pk, first.pk)


def test_two_reviewers_an_item_means_two_judgements():
    rollout = finished()
    queue = make_queue(reviewers_per_item=2)
    given = [reserve_next(queue=queue, reviewer=make_user("reviewer")) for _ in range(3)]
    assert [item.rollout_id if item else None for item in given] == [rollout.pk, rollout.pk, None]


def test_a_queue_holds_what_its_filter_means():
    kept = finished(outcome="harness_timeout", reward=0.2, flags=[{"kind": "x"}])
    finished(outcome="harness_timeout", reward=0.2)
    finished(outcome="completed", reward=0.2, flags=[{"kind": "x"}])
    finished(outcome="harness_timeout", reward=0.9, flags=[{"kind": "x"}])
    make_rollout(outcome="harness_timeout", reward=0.2, flags=[{"kind": "x"}])
    queue = make_queue(query={"outcome": "harness_timeout", "reward_max": 0.5, "flagged": "yes"})
    reviewer = make_user("reviewer")
    item = reserve_next(queue=queue, reviewer=reviewer)
    assert item is not None
    assert item.rollout_id == kept.pk
    assert reserve_next(queue=queue, reviewer=make_user("reviewer")) is None


def test_a_queue_is_made_from_the_page():
    finished(outcome="idle")
    form = {"name": "idle ones", "outcome": "idle", "reviewers_per_item": 1, "reservation_minutes": 15}
    response = client_of("reviewer").post(reverse("review:index"), form)
    queue = Queue.objects.get()
    assert response["Location"] == reverse("review:next", args=[queue.pk])
    assert queue.filter.query == {"outcome": "idle"}


def test_a_wrong_queue_form_says_which_field():
    response = client_of("reviewer").post(
        reverse("review:index"), {"name": "", "reviewers_per_item": 0, "reservation_minutes": 15}
    )
    assert b"field-error" in response.content
    assert not Queue.objects.exists()


def test_an_empty_queue_says_why():
    assert b"has no item yet" in client_of("reviewer").get(reverse("review:next", args=[make_queue().pk])).content
