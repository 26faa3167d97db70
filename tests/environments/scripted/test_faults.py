"""What a scripted engine can be told to do wrong, and that the gateway's harness sees none of it."""

import pytest

from environments.models import Call, Node
from environments.scripted.engine import Fault
from tests.environments.gateway.conftest import chat, world

__all__ = ["world"]

ANSWER = "An answer of some length."


async def ask(world, session, turn: str = "hi") -> str:
    async with world.client(session) as client:
        answer = await client.post("/v1/chat/completions", json=chat(turn))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "fault", [Fault(refuse=500), Fault(cut_after=5), Fault(garbage=True), Fault(hang_s=0.05)], ids=str
)
async def test_a_fault_of_one_call_costs_nothing_that_was_sampled(world, fault):
    world.engine.rule = lambda prompt: ANSWER[len(prompt.split()[1]) :]
    world.engine.faults = {0: fault}
    session = await world.session()
    assert await ask(world, session) == ANSWER
    call = await Call.objects.aget(rollout=session.rollout_id)
    assert call.num_sampled_tokens == len(ANSWER) + 1


async def test_a_version_that_changes_in_mid_answer_is_recorded_token_by_token(world):
    world.engine.rule = lambda prompt: "abcdef"
    world.engine.faults = {0: Fault(version_after=2, version="4")}
    session = await world.session()
    await ask(world, session)
    node = await Node.objects.aget(rollout=session.rollout_id, sampled=True)
    assert node.version_spans == [[1, 3, 3], [3, 8, 4]]


async def test_an_engine_that_stops_in_mid_answer_is_waited_for(world):
    world.engine.rule = lambda prompt: ANSWER
    world.engine.faults = {0: Fault(pause_after=4, pause_s=0.2)}
    assert await ask(world, await world.session()) == ANSWER
    assert world.engine.num_started == 1
