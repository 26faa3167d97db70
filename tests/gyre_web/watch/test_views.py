"""The rollout page's data: who may read it, and that it says what the record says."""

import uuid
from typing import Any

import orjson
import pytest
from django.test import Client
from django.urls import reverse

from environments import live
from environments.models import Rollout
from tests.gyre_web.watch.makers import (
    bytes_ids,
    call_event,
    make_call,
    make_member,
    make_node,
    make_rollout,
    make_session,
    make_user,
    tokens_event,
)
from tests.gyre_web.watch.world import build_world, end_world, train_world

pytestmark = pytest.mark.django_db

DATA_PAGES = ("snapshot", "nodes", "find", "timeline", "terminal", "changes", "verifier", "network", "raw")


def client_of(role: str) -> Client:
    client = Client()
    client.force_login(make_user(role))
    return client


def get(client: Client, name: str, *args: Any, **query: Any) -> dict[str, Any]:
    response = client.get(reverse(f"watch:{name}", args=args), query)
    assert response.status_code == 200, response.content
    return orjson.loads(response.content)


def two_nodes() -> Rollout:
    rollout = make_rollout()
    make_node(rollout, 0, None, {"role": "user", "content": "Größe?"}, ids=[256, *bytes_ids("Größe?"), 257])
    make_node(
        rollout, 1, 0, {"role": "assistant", "content": "ab"}, ids=[258, 97, 98, 257], sampled=True,
        logprobs=[-0.5, -1.0, -2.0], version_spans=[[1, 3, 4], [3, 4, 5]],
    )  # fmt: skip
    return rollout


@pytest.mark.parametrize("page", ["rollout", *DATA_PAGES])
def test_a_stranger_is_sent_to_sign_in(page):
    response = Client().get(reverse(f"watch:{page}", args=[make_rollout().pk]))
    assert response.status_code == 302
    assert "sign" in response["Location"]


@pytest.mark.parametrize("role", ["viewer", "reviewer", "operator", "admin"])
def test_every_role_may_look(role):
    client = client_of(role)
    rollout = two_nodes()
    for page in ("rollout", *DATA_PAGES):
        assert client.get(reverse(f"watch:{page}", args=[rollout.pk]), {"q": "a"}).status_code == 200, page


def test_a_deactivated_person_may_not_look():
    user = make_user()
    client = Client()
    client.force_login(user)
    user.is_active = False
    user.save()
    assert client.get(reverse("watch:snapshot", args=[make_rollout().pk])).status_code in (302, 403)


def test_only_reviewers_see_the_label_panel():
    rollout = two_nodes()
    page = reverse("watch:rollout", args=[rollout.pk])
    assert b"data-label-panel" not in client_of("viewer").get(page).content
    assert b"data-label-panel" in client_of("reviewer").get(page).content


@pytest.mark.parametrize("page", ["rollout", *DATA_PAGES])
def test_what_does_not_exist_is_not_found(page):
    assert client_of("viewer").get(reverse(f"watch:{page}", args=[uuid.uuid4()]), {"q": "a"}).status_code == 404


@pytest.mark.parametrize(
    ("page", "query", "names"),
    [("nodes", {"from": "-1"}, "from"), ("nodes", {"count": "201"}, "count"), ("snapshot", {"at": "x"}, "at"), ("find", {"q": " "}, "q"),
     ("find", {"q": "a" * 201}, "q"), ("raw", {"count": "99"}, "count")],
)  # fmt: skip
def test_a_wrong_parameter_is_named(page, query, names):
    response = client_of("viewer").get(reverse(f"watch:{page}", args=[make_rollout().pk]), query)
    assert response.status_code == 400
    assert f"`{names}`" in orjson.loads(response.content)["error"]


def test_the_page_holds_no_markup_from_a_model():
    rollout = make_rollout(error="<script>alert(1)</script>")
    make_node(rollout, 0, None, {"role": "user", "content": "<img src=x onerror=alert(1)>"}, ids=[1])
    assert b"<script>alert" not in client_of("viewer").get(reverse("watch:rollout", args=[rollout.pk])).content


def test_a_snapshot_has_the_tree_in_columns_and_messages_around_the_place():
    rollout = build_world(turns=50)
    data = get(client_of("viewer"), "snapshot", rollout.pk, at=50)
    assert data["columns"]["index"] == list(range(rollout.nodes.count()))
    assert data["columns"]["parent"][:4] == [None, 0, 1, 2]
    assert data["columns"]["num_tokens"][0] == len(rollout.nodes.get(index=0).ids) // 4
    assert sorted(map(int, data["messages"])) == list(range(10, 90))
    assert data["position"] is None


def test_a_snapshot_brings_the_tokens_of_open_calls_and_where_to_go_on():
    rollout = two_nodes()
    call = make_call(rollout, make_session(rollout), 0, prompt_node=0)
    live.append_sync(
        rollout.pk,
        [call_event(call), ("state", {"state": "running"}), tokens_event(call, 0, 0, "hel"), ("output", {"text": "x"})],
    )
    data = get(client_of("viewer"), "snapshot", rollout.pk)
    assert [(kind, n) for _, n, kind, _ in data["tail"]] == [("tokens", 3), ("output", 4)]
    assert data["position"][1] == 4
    assert data["tail_whole"] is True


def test_a_snapshot_reaches_back_to_where_an_open_call_began_to_sample():
    rollout = two_nodes()
    call = make_call(rollout, make_session(rollout), 0, prompt_node=0)
    live.append_sync(rollout.pk, [tokens_event(call, 0, i, "x") for i in range(2500)])
    tail = get(client_of("viewer"), "snapshot", rollout.pk)["tail"]
    assert [entry[3]["start"] for entry in tail] == list(range(2500))


def test_a_long_text_is_cut_in_the_window_and_whole_on_its_own():
    rollout = make_rollout()
    make_node(rollout, 0, None, {"role": "tool", "content": "x" * 30_000}, ids=[1])
    client = client_of("viewer")
    message = get(client, "nodes", rollout.pk)["messages"]["0"]
    assert (len(message["content"]), message["cut"]) == (20_000, {"content": 30_000})
    assert len(get(client, "node", rollout.pk, 0)["message"]["content"]) == 30_000


def test_tokens_are_decoded_one_by_one_with_what_was_recorded():
    data = get(client_of("viewer"), "tokens", two_nodes().pk, 1)
    assert data["ids"] == [258, 97, 98, 257]
    assert data["texts"] == ["<|258|>", "a", "b", "<|257|>"]
    assert data["special"] == [0, 3]
    assert data["logprobs"] == [None, -0.5, -1.0, -2.0]
    assert data["versions"] == [None, 4, 4, 5]
    assert (data["mask"], data["mask_recorded"]) == ([0, 1, 1, 1], False)
    assert data["trainer_logprobs"] == [None] * 4
    assert data["advantage"] is None


def test_a_character_of_two_tokens_is_never_broken():
    data = get(client_of("viewer"), "tokens", two_nodes().pk, 0)
    assert data["texts"] == ["<|256|>", "G", "r", "", "ö", "", "ß", "e", "?", "<|257|>"]
    assert data["special"] == [0, 9]
    assert data["logprobs"] == [None] * 10


def test_tokens_come_in_windows():
    data = get(client_of("viewer"), "tokens", two_nodes().pk, 1, **{"from": 2, "count": 1})
    assert (data["start"], data["total"], data["texts"], data["versions"]) == (2, 4, ["b"], [4])


def test_after_training_the_mask_and_the_trainers_logprobs_are_the_recorded_ones():
    rollout = two_nodes()
    import base64
    import struct

    stats = {
        "1": {
            "trainer_logprobs": base64.b64encode(struct.pack("<3f", -0.25, -1.0, -2.0)).decode(),
            "loss_mask": base64.b64encode(b"\x01\x00\x01").decode(),
        }
    }
    make_member(rollout, advantage=1.5, token_stats=stats)
    data = get(client_of("viewer"), "tokens", rollout.pk, 1)
    assert (data["mask"], data["mask_recorded"]) == ([0, 1, 0, 1], True)
    assert data["trainer_logprobs"] == [None, -0.25, -1.0, -2.0]
    assert data["advantage"] == 1.5


def test_an_aborted_answer_is_sampled_but_not_in_the_loss():
    rollout = make_rollout()
    make_node(rollout, 0, None, {"role": "assistant", "content": "a"}, ids=[258, 97], sampled=True, trainable=False)
    assert get(client_of("viewer"), "tokens", rollout.pk, 0)["mask"] == [0, 0]


def test_find_looks_into_every_message_and_takes_wildcards_as_text():
    rollout = two_nodes()
    make_node(rollout, 2, 1, {"role": "tool", "content": "100% of it\nfailed"}, ids=[1])
    client = client_of("viewer")
    assert [hit["index"] for hit in get(client, "find", rollout.pk, q="GRÖSSE")["hits"]] == []
    assert [hit["index"] for hit in get(client, "find", rollout.pk, q="größe")["hits"]] == [0]
    assert get(client, "find", rollout.pk, q="% of")["hits"] == [
        {"index": 2, "role": "tool", "snippet": "100% of it\nfailed\n\n"}
    ]
    assert get(client, "find", rollout.pk, q="%a%")["total"] == 0


def test_the_rebuilt_request_says_that_it_is_rebuilt():
    rollout = two_nodes()
    make_node(rollout, 2, 0, {"role": "user", "content": "other branch"}, ids=[1])
    make_node(rollout, 3, 1, {"role": "tool", "content": "out"}, ids=[1])
    make_call(rollout, make_session(rollout), 0, prompt_node=3, imposed={"temperature": 1.0})
    data = get(client_of("viewer"), "request", rollout.pk, 0)
    assert data["rebuilt"] is True
    assert [message["content"] for message in data["messages"]] == ["Größe?", "ab", "out"]
    assert data["imposed"] == {"temperature": 1.0}


def test_raw_is_the_record_with_ids():
    data = get(client_of("viewer"), "raw", two_nodes().pk)
    assert data["nodes"][1]["ids"] == [258, 97, 98, 257]
    assert data["nodes"][1]["behaviour_logprobs"] == [-0.5, -1.0, -2.0]
    assert "lease_owner" not in data["rollout"]


def test_the_terminal_comes_from_the_live_log_until_it_is_kept():
    rollout = make_rollout()
    live.append_sync(
        rollout.pk, [("output", {"text": "one\n"}), ("state", {"state": "running"}), ("output", {"text": "two\n"})]
    )
    client = client_of("viewer")
    data = get(client, "terminal", rollout.pk)
    assert (data["source"], data["text"], data["position"][1], data["whole"]) == ("live", "one\ntwo\n", 3, True)
    Rollout.objects.filter(pk=rollout.pk).update(harness_output="kept")
    assert get(client, "terminal", rollout.pk)["text"] == "kept"


def test_the_pages_of_a_trained_rollout_tell_its_whole_story():
    rollout = end_world(build_world())
    train_world(rollout)
    client = client_of("viewer")
    snapshot = get(client, "snapshot", rollout.pk)
    assert snapshot["rollout"]["member"]["advantage"] == 1.31
    assert len(get(client, "timeline", rollout.pk)["calls"]) == 17
    assert get(client, "verifier", rollout.pk)["reward_parts"] == {"hidden_tests": 0.75, "style": 1.0}
    assert "def total" in get(client, "changes", rollout.pk)["diff"]


def test_a_rollout_of_two_thousand_turns_costs_a_constant_number_of_queries(django_assert_max_num_queries):
    small, big = build_world(turns=3), build_world(turns=300)
    client = client_of("viewer")
    with django_assert_max_num_queries(16) as few:
        get(client, "snapshot", small.pk)
    with django_assert_max_num_queries(16) as many:
        response = client.get(reverse("watch:snapshot", args=[big.pk]))
    assert len(few) == len(many)
    assert len(response.content) < 250_000


def test_neighbours_are_of_the_same_pool():
    first, second, other = make_rollout(pool="p"), make_rollout(pool="p"), make_rollout(pool="q")
    page = client_of("viewer").get(reverse("watch:rollout", args=[first.pk])).content.decode()
    assert f'data-next="{second.pk}"' in page
    assert str(other.pk) not in page


def test_the_network_tab_says_what_may_be_reached_and_what_was_asked_for():
    rollout = make_rollout()
    client = client_of("viewer")
    assert get(client, "network", rollout.pk)["allowed"] == []
    rollout.task.settings = {"environment": {"allowed_hosts": ["site.test", "*.other.test:8443"]}}
    rollout.task.save()
    for number, verdict in enumerate(("allowed", "denied")):
        rollout.egress_requests.create(
            at=rollout.created_at, method="CONNECT", host="site.test", port=443 + number, verdict=verdict
        )

    found = get(client, "network", rollout.pk)

    assert found["allowed"] == ["site.test", "*.other.test:8443"]
    assert (found["number"], found["denied"], found["live"]) == (2, 1, rollout.is_live)
    assert [(one["port"], one["verdict"]) for one in found["requests"]] == [(443, "allowed"), (444, "denied")]


def test_a_task_that_asks_for_the_whole_internet_is_told_that_it_has_none(settings):
    rollout = make_rollout()
    rollout.task.settings = {"environment": {"allow_internet": True}}
    rollout.task.save()
    client = client_of("viewer")
    assert "GYRE_EGRESS_ANY" in get(client, "network", rollout.pk)["wish"]
    settings.EGRESS_ANY = True
    assert get(client, "network", rollout.pk)["allowed"] == ["every public host"]
