"""Fork a rollout from its page and by REST: what starts, and what is said where nothing can."""

import orjson
import pytest
from django.test import Client
from django.urls import reverse

from environments.models import Fork, Node, Rollout
from gyre_web.audit.models import AuditEntry
from tests.gyre_web.watch.makers import make_call, make_node, make_rollout, make_session, make_user

pytestmark = pytest.mark.django_db


def recorded():
    """Two calls; the second one's prompt follows the first one's answer."""
    rollout = make_rollout()
    session = make_session(rollout)
    roles = ("user", "assistant", "user", "assistant")
    for index, role in enumerate(roles):
        message = {"role": role, "content": f"m{index}"}
        make_node(rollout, index, index - 1 if index else None, message, ids=[index], sampled=role == "assistant")
    make_call(rollout, session, 0, prompt_node=0, answer_node=1, state="completed")
    make_call(rollout, session, 1, prompt_node=2, answer_node=3, state="completed")
    rollout.harness.program = "command"
    rollout.harness.save()
    return rollout


def post(role, rollout, body):
    client = Client()
    client.force_login(make_user(role))
    return client.post(reverse("watch:fork", args=[rollout.pk]), orjson.dumps(body), content_type="application/json")


def test_forks_share_the_nodes_before_the_call_as_context():
    rollout = recorded()
    response = post("operator", rollout, {"call_index": 1, "count": 2})
    assert response.status_code == 201, response.content
    forks = Fork.objects.filter(original=rollout, call_index=1)
    assert response.json()["forks"] == [reverse("watch:rollout", args=[f.rollout_id]) for f in forks.order_by("pk")]
    for fork in forks:
        assert fork.rollout.state == Rollout.State.QUEUED
        nodes = Node.objects.filter(rollout=fork.rollout).order_by("index")
        assert [(n.index, n.sampled, n.trainable) for n in nodes] == [(0, False, False), (1, True, False)]
        assert bytes(nodes[1].ids) == bytes(rollout.nodes.get(index=1).ids)
    assert AuditEntry.objects.get(action="rollout.fork").object_id == str(rollout.pk)


@pytest.mark.parametrize(
    ("body", "said"),
    [({"call_index": 9, "count": 1}, "call_index"), ({"call_index": 0, "count": 99}, "count"), ({}, "call_index"), ([], "count")],
)  # fmt: skip
def test_what_cannot_be_forked_is_refused_by_name(body, said):
    rollout = recorded()
    response = post("operator", rollout, body)
    assert response.status_code == 400
    assert said in response.json()["error"]
    assert not Fork.objects.exists()


def test_the_page_offers_forks_to_those_who_may_and_a_fork_says_where_it_is_from():
    rollout = recorded()
    page = Client()
    page.force_login(make_user("viewer"))
    assert b"data-fork" not in page.get(reverse("watch:rollout", args=[rollout.pk])).content
    fork = Rollout.objects.get(pk=post("operator", rollout, {"call_index": 1, "count": 1}).json()["forks"][0][-36:])
    shown = page.get(reverse("watch:rollout", args=[fork.pk])).content.decode()
    assert "Forked from" in shown
    assert str(rollout.pk) in shown
