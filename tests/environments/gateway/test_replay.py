"""A lost sandbox, and a fork: the next session is answered from the record while it asks the same, then by engines."""

import pytest
from asgiref.sync import sync_to_async

from environments.forks import ForkRefused, fork_rollout
from environments.gateway.replay import exit_code
from environments.models import Call, Node, Rollout, Session
from tests.environments.gateway.conftest import INSTRUCTION, chat, check_identity

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
identity = sync_to_async(check_identity)


async def run(world, session, turns, result):
    """A harness that asks `turns` times; what it got, and its history. result(turn) is its tool's."""
    history, got = ["system: S", INSTRUCTION], []
    async with world.client(session) as client:
        for turn in range(turns):
            response = await client.post(PATH, json=chat(*history, tools=TOOLS))
            assert response.status_code == 200, response.text
            answer = response.json()["choices"][0]["message"]
            got.append(answer)
            tool = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": result(turn)}
            history += [{**answer, "role": "assistant"}, tool]
    return got


async def lost(session):
    """Its sandbox is gone: another session of the same rollout."""
    session.finished_at = session.created_at
    await session.asave()
    return await Session.objects.acreate(rollout_id=session.rollout_id)


async def test_a_second_session_reaches_call_k_without_an_engine_and_goes_on(world):
    world.engine.rule = lambda prompt: f"turn {prompt.number} {CALL}"
    first = await world.session()
    before = await run(world, first, 3, lambda turn: f"pid 1{turn}, exit code 0")
    second = await lost(first)
    after = await run(world, second, 5, lambda turn: f"pid 2{turn}, exit code 0")
    assert after[:3] == before
    assert world.engine.num_started == 5
    rollout = await Rollout.objects.aget(id=first.rollout_id)
    assert rollout.num_branches == 1
    assert rollout.num_calls == 5
    assert rollout.drift == {"tool-result": 2}
    replayed = [c async for c in Call.objects.filter(session=second, replay_of__isnull=False).order_by("index")]
    assert [c.num_sampled_tokens for c in replayed] == [0, 0, 0]
    assert [[d[0] for d in c.drift] for c in replayed] == [[], ["tool-result"], ["tool-result"]]
    assert await Node.objects.filter(rollout=rollout, sampled=True).acount() == 5
    assert b"pid 10" in bytes(i % 256 for i in world.engine.requests[-1].prompt)
    assert b"pid 20" not in bytes(i % 256 for i in world.engine.requests[-1].prompt)
    assert await identity(first.rollout_id, [world.engine]) == 5


async def test_a_new_gateway_goes_on_with_a_replay_where_the_old_one_was(world):
    from environments.gateway.app import Gateway

    world.engine.rule = lambda prompt: f"turn {prompt.number} {CALL}"
    first = await world.session()
    before = await run(world, first, 3, lambda turn: f"{turn} at noon")
    second = await lost(first)
    await run(world, second, 2, lambda turn: f"{turn} at night")
    await world.servers[-1].stop()
    world.servers.pop()
    world.gateway = Gateway(socket_dir=world.directory)
    await world.serve(world.gateway, world.gateway.socket_name)
    third = await lost(second)
    assert (await run(world, third, 3, lambda turn: f"{turn} at dawn")) == before
    assert world.engine.num_started == 3


async def test_another_exit_code_is_a_structural_difference_and_goes_live(world):
    world.engine.rule = lambda prompt: f"turn {prompt.number} {CALL}"
    first = await world.session()
    before = await run(world, first, 3, lambda turn: "exit code 0")
    second = await lost(first)
    after = await run(world, second, 3, lambda turn: "exit code 1" if turn == 0 else "exit code 0")
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert world.engine.num_started == 5
    assert (await Rollout.objects.aget(id=first.rollout_id)).num_branches == 2
    assert await identity(first.rollout_id, [world.engine]) == 5


async def test_a_fork_shares_the_record_up_to_call_k_and_then_goes_its_own_way(world):
    world.engine.rule = lambda prompt: f"turn {prompt.number} {CALL}"
    first = await world.session()
    before = await run(world, first, 4, lambda turn: f"r{turn}")
    original = await Rollout.objects.select_related("harness", "task", "model").aget(id=first.rollout_id)
    await sync_to_async(set_program)(original, "command")
    forks = await sync_to_async(fork_rollout)(original=original, call_index=2, count=2)
    answers = []
    for fork in forks:
        session = await Session.objects.acreate(rollout=fork)
        got = await run(world, session, 4, lambda turn: f"r{turn}")
        assert got[:2] == before[:2]
        answers.append(got[2]["content"])
        own = [n.index async for n in Node.objects.filter(rollout=fork, trainable=True)]
        assert len(own) == 2
        assert await identity(fork.pk, [world.engine]) == 2
        assert (await Rollout.objects.aget(id=fork.pk)).num_calls == 2
    assert len({before[2]["content"], *answers}) == 3
    assert world.engine.num_started == 4 + 2 * 2


async def test_a_fork_is_refused_by_name(world):
    session = await world.session()
    rollout = await Rollout.objects.select_related("harness").aget(id=session.rollout_id)
    for call_index, count, said in ((0, 1, "call_index"), (0, 0, "count")):
        with pytest.raises(ForkRefused, match=said):
            await sync_to_async(fork_rollout)(original=rollout, call_index=call_index, count=count)


def set_program(rollout, program):
    rollout.harness.program = program
    rollout.harness.save()


def test_exit_codes_are_read_in_the_forms_of_the_programs():
    for text in ("exit 3\nout", '{"returncode": 3, "output": ""}', "Process exited with code 3", "Exit Code: 3",
                 "Wall time 1\nexit_code=3"):  # fmt: skip
        assert exit_code(text) == "3"
    assert exit_code("three lines") == ""
