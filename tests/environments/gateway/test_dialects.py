"""What the providers' own SDKs make of our answers, in every dialect, streamed and whole; and that it is one record."""

import pytest
from asgiref.sync import sync_to_async

from environments.models import Call, Node, Rollout
from tests.environments.gateway.conftest import INSTRUCTION, check_identity
from tests.environments.gateway.speakers import SPEAKERS

THOUGHT, TEXT, LAST = "Two things to see.", "I look.", "It is done: é 😀."
FIRST = (
    f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls  -l", "n": 1.50}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command": "pwd"}}\n</tool_call>'
)
CALLS = [("bash", {"command": "ls  -l", "n": 1.5}), ("bash", {"command": "pwd"})]
RESULTS = ["total 0\n", "/work\n"]
ALL = [(name, stream) for name in SPEAKERS for stream in (False, True)]
identity = sync_to_async(check_identity)
pytestmark = pytest.mark.slow  # the SDKs take seconds to import


def rule(prompt):
    return LAST if "/work" in prompt.text else FIRST


async def converse(world, name, stream, delivery="stream"):
    """The whole small conversation; (session, what the SDK heard)."""
    session = await world.session(delivery=delivery)
    speaker = SPEAKERS[name](world.directory / world.gateway.socket_name, session.key, stream=stream)
    speaker.user(INSTRUCTION)
    first = await speaker.ask()
    speaker.results(first, RESULTS)
    last = await speaker.ask()
    await speaker.close()
    return session, first, last


async def record_of(session):
    """What was seen and sampled, without the ids of calls (they are new in each session)."""
    rows = Node.objects.filter(rollout=session.rollout_id).order_by("index")
    return [
        (n.parent, n.role, n.branch_role, n.sampled, n.trainable, n.opener_length, bytes(n.ids),
         bytes(n.behaviour_logprobs or b""), n.version_spans)
        async for n in rows
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "stream"), ALL)
async def test_an_sdk_parses_reasoning_text_parallel_calls_usage_and_finish(world, name, stream):
    world.engine.rule = rule
    session, first, last = await converse(world, name, stream)
    assert (first.text.strip(), first.reasoning, first.finish) == (TEXT, THOUGHT, "tool_calls")
    assert [call[1:] for call in first.calls] == CALLS
    assert len({call[0] for call in first.calls}) == 2
    assert (last.text, last.reasoning, last.calls, last.finish) == (LAST, "", [], "stop")
    calls = [c async for c in Call.objects.filter(rollout=session.rollout_id).order_by("index")]
    assert [(c.num_prompt_tokens, c.num_sampled_tokens) for c in calls] == [first.usage, last.usage]
    assert {(c.dialect, c.streamed, c.state) for c in calls} == {(name, stream, "completed")}
    assert (await Rollout.objects.aget(id=session.rollout_id)).num_branches == 1
    assert await identity(session.rollout_id, [world.engine]) == 2


async def test_one_conversation_is_one_record_in_every_dialect_streamed_and_whole(world):
    world.engine.rule = rule
    records = {}
    for name, stream in ALL:
        session, _, _ = await converse(world, name, stream)
        records[name, stream] = await record_of(session)
    expected = records["chat", False]
    assert [row[1] for row in expected] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    for key, record in records.items():
        assert record == expected, key


@pytest.mark.parametrize("name", SPEAKERS)
async def test_length_is_each_dialects_own_finish(world, name):
    session = await world.session(sampling={"max_tokens": 5})
    world.engine.rule = lambda prompt: "a long answer"
    for stream in (False, True):
        speaker = SPEAKERS[name](world.directory / world.gateway.socket_name, session.key, stream=stream)
        speaker.user(f"go {stream}")
        heard = await speaker.ask()
        await speaker.close()
        assert (heard.text, heard.finish) == ("a lon", "length")
