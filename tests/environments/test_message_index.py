"""Full-text search over many rollouts: what is found, and that the index finds it."""

import uuid

import pytest
from django.db import connection
from django.utils import timezone

from environments.message_index import OVERLAP_CHARS, PIECE_CHARS, containing, index_ended
from environments.models import MessageText, Node, Rollout
from tests.gyre_web.factories import make_catalog

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast(db):
    model, harness, tasks = make_catalog(num_tasks=1)
    return {"model": model, "harness": harness, "task": tasks[0]}


def make(cast, *messages, state="ended"):
    rollout = Rollout.objects.create(**cast, pool="p", state=state, ended_at=timezone.now())
    for index, message in enumerate(messages):
        message = message if isinstance(message, dict) else {"role": "user", "content": message}
        Node.objects.create(
            rollout=rollout, index=index, parent=None, depth_tokens=0, key=uuid.uuid4().bytes * 2, role="user",
            sampled=False, ids=b"", message=message,
        )  # fmt: skip
    return rollout


def found(text):
    return set(containing(Rollout.objects.all(), text).values_list("pk", flat=True))


def test_text_is_found_in_messages_tool_output_reasoning_and_tool_calls_whatever_the_case(cast):
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": "bash", "arguments": '{"cmd": "grep Harbour"}'}],
    }
    one = make(cast, "The HARBOUR is full", "nothing")
    two = make(cast, call)
    three = make(cast, {"role": "assistant", "content": "x", "reasoning": "perhaps the harbour"})
    make(cast, "a quay")
    assert index_ended() == 4
    assert found("harbour") == {one.pk, two.pk, three.pk}


def test_signs_and_parts_of_words_are_compared_with_the_message_itself(cast):
    one = make(cast, "see src/utils_test.py:12, please")
    two = make(cast, "utils test py")
    index_ended()
    assert found("utils_test.py:1") == {one.pk}
    assert found("utils test") == {two.pk}
    assert found("util") == {one.pk, two.pk}
    assert found("->") == set()
    assert found("100%_off") == set()


def test_rollouts_that_still_run_or_are_not_indexed_yet_are_looked_through_in_full(cast):
    live, ended = make(cast, "a lighthouse", state="running"), make(cast, "a lighthouse")
    assert found("light") == {live.pk, ended.pk}
    assert index_ended() == 1
    assert found("light") == {live.pk, ended.pk}


def test_a_message_of_megabytes_is_indexed_in_pieces_and_found_across_their_border(cast):
    filler = " ".join(f"word{n}" for n in range(180_000))
    step = PIECE_CHARS - OVERLAP_CHARS
    border = filler[: step - 4] + " lantern keeper " + filler[step:]
    rollout = make(cast, border + " the end zebra")
    index_ended()
    assert len(border) > 1_500_000
    assert MessageText.objects.filter(rollout=rollout).count() > 10
    assert found("lantern keeper") == {rollout.pk}
    assert found("end zebra") == {rollout.pk}
    assert found("lantern zebra") == set()


def test_indexing_twice_changes_nothing(cast):
    rollout = make(cast, "once")
    assert (index_ended(), index_ended()) == (1, 0)
    Rollout.objects.update(messages_indexed_at=None)
    assert index_ended() == 1
    assert MessageText.objects.filter(rollout=rollout).count() == 1


@pytest.mark.slow
def test_among_many_messages_the_index_is_used(cast):
    wanted = make(cast, "a rare pelican")
    others = [make(cast) for _ in range(20)]
    index_ended(100)
    with connection.cursor() as cursor:
        for other in others:
            cursor.execute(
                "INSERT INTO environments_messagetext (rollout_id, node_index, piece, words) SELECT %s, n, 0,"
                " to_tsvector('simple', 'common words ' || md5(n::text)) FROM generate_series(1, 2000) n",
                [other.pk],
            )
            cursor.execute(
                "INSERT INTO environments_node (rollout_id, index, depth_tokens, key, role, branch_role, sampled,"
                " trainable, opener_length, ids, version_spans, engines, message, flags, created_at)"
                " SELECT %s, n, 0, '', 'user', 'main', false, false, 0, '', '[]', '[]',"
                " jsonb_build_object('content', 'common words ' || md5(n::text)), '[]', now()"
                " FROM generate_series(1, 2000) n",
                [other.pk],
            )
        cursor.execute("ANALYZE environments_messagetext, environments_node, environments_rollout")
    plan = containing(Rollout.objects.all(), "pelican").explain()
    assert "message_text_words" in plan
    assert found("pelican") == {wanted.pk}
