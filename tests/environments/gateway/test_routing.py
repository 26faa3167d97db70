"""Several engines, some of them ill: every harness gets its own answer, and what was sampled is sampled once."""

import asyncio

import pytest
from asgiref.sync import sync_to_async

from environments.gateway import routing as routing_module
from environments.models import Call, Engine, Node
from environments.scripted.engine import ScriptedEngine
from tests.environments.gateway.conftest import INSTRUCTION, chat, check_identity
from tests.environments.gateway.test_faults import until

PATH = "/v1/chat/completions"
identity = sync_to_async(check_identity)


class Ill:
    """An engine in front of which something stands: `how` is hang, garbage, status or nothing."""

    def __init__(self, engine, how="hang"):
        self.engine, self.how, self.asked = engine, how, 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or not self.how:
            await self.engine(scope, receive, send)
            return
        is_generate = scope["path"].startswith("/inference")
        self.asked += is_generate
        if self.how == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
        elif self.how == "status" or not is_generate:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": self.how.encode(), "more_body": False})


async def add_ill(world, how, **row):
    """Preferred to the healthy one (standalone comes first)."""
    ill = Ill(ScriptedEngine(), how)
    path = await world.serve(ill, "ill.sock")
    made = await Engine.objects.acreate(
        pool="p", name="ill", base_url=f"unix://{path}", model_name="scripted", state="serving", standalone=True, **row
    )
    await world.gateway.routing.refresh()
    return ill, made


async def ask(world, session, *turns):
    async with world.client(session) as client:
        return (await client.post(PATH, json=chat(*turns))).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "how",
    ["status", "no event at all", "data: {\n\n", "data: 7\n\n", 'data: {"choices": [{"token_ids": ["x"]}]}\n\n',
     'data: {"choices": [{"token_ids": [97], "logprobs": null}]}\n\n', 'data: {"error": "out of memory"}\n\n'],
)  # fmt: skip
async def test_an_engine_that_answers_garbage_is_left_and_what_it_said_is_not_recorded(world, how):
    world.engine.rule = lambda prompt: "well"
    ill, _ = await add_ill(world, how)
    session = await world.session()
    assert await ask(world, session, INSTRUCTION) == "well"
    assert ill.asked == 1
    assert await identity(session.rollout_id, [world.engine]) == 1


async def test_after_three_failures_an_engine_is_out_until_it_answers_a_probe(world, monkeypatch):
    monkeypatch.setattr(routing_module, "SUSPECT_S", 0.0)
    monkeypatch.setattr(routing_module, "PROBE_S", 0.02)
    world.engine.rule = lambda prompt: "well"
    ill, row = await add_ill(world, "status")
    ill.engine.rule = lambda prompt: "cured"
    for _ in range(5):
        assert await ask(world, await world.session(), INSTRUCTION) == "well"
    assert ill.asked == routing_module.OUT_AFTER
    assert world.gateway.routing.is_out(row.id)
    ill.how = ""
    await until(lambda: not world.gateway.routing.is_out(row.id))
    assert await ask(world, await world.session(), INSTRUCTION) == "cured"


async def test_an_engine_that_hangs_is_left_and_one_that_is_only_slow_is_not(world, monkeypatch):
    monkeypatch.setattr(routing_module, "QUIET_S", 0.2)
    monkeypatch.setattr(routing_module, "PROBE_S", 0.02)
    monkeypatch.setattr(routing_module, "PROBE_TIMEOUT_S", 2.0)
    slow, _ = await world.add_engine("slow", pool="slow")
    slow.rule, slow.tokens_per_s = lambda prompt: "ab", 2.0
    patient = asyncio.create_task(ask(world, await world.session(pool="slow"), INSTRUCTION))
    monkeypatch.setattr(routing_module, "PROBE_TIMEOUT_S", 0.5)
    world.engine.rule = lambda prompt: "well"
    ill, _ = await add_ill(world, "hang")
    assert await ask(world, await world.session(), INSTRUCTION) == "well"
    assert ill.asked == 1
    assert await patient == "ab"
    assert len(slow.requests) == 1


async def test_an_engine_that_drains_ends_its_call_and_gets_no_new_one(world):
    world.engine.rule = lambda prompt: "0123456789"
    world.engine.tokens_per_s = 40
    session = await world.session()
    first = asyncio.create_task(ask(world, session, INSTRUCTION))
    await until(lambda: world.engine.requests and world.engine.requests[0].produced)
    other, _ = await world.add_engine("other")
    other.rule = lambda prompt: "elsewhere"
    await world.set_engine("engine", state="draining")
    assert await first == "0123456789"
    assert await ask(world, session, INSTRUCTION, "0123456789", "Go on.") == "elsewhere"
    assert (len(world.engine.requests), len(other.requests)) == (1, 1)


async def test_engines_of_different_versions_serve_at_once_and_each_answer_says_whose_it_is(world):
    other, row = await world.add_engine("other", version=7)
    other.version = "7"
    world.engine.rule = other.rule = lambda prompt: "x"
    sessions = [await world.session() for _ in range(4)]
    await asyncio.gather(*(ask(world, session, INSTRUCTION) for session in sessions))
    for session in sessions:
        node = await Node.objects.aget(rollout=session.rollout_id, sampled=True)
        expected = 7 if node.engines == [str(row.id)] else 3
        assert [span[2] for span in node.version_spans] == [expected]
    assert (len(world.engine.requests), len(other.requests)) == (2, 2)


@pytest.mark.slow
async def test_two_hundred_sessions_at_once_get_their_own_answers_and_no_others(world):
    other, _ = await world.add_engine("other")
    for engine in (world.engine, other):
        engine.rule = lambda prompt: "echo " + prompt.text.rpartition("say ")[2].split()[0]
        engine.tokens_per_chunk = 3
    world.engine.fail_after = 40
    sessions = [await world.session(delivery="stream" if n % 2 else "whole") for n in range(200)]

    async def one(number, session):
        turns = [INSTRUCTION]
        async with world.client(session, trust_env=False) as client:
            for turn in range(3):
                word = f"{number}-{turn}"
                turns.append(f"say {word} end") if turn else turns.__setitem__(0, f"{INSTRUCTION} say {word} end")
                answer = (await client.post(PATH, json=chat(*turns), timeout=120)).json()["choices"][0]["message"]
                assert answer["content"] == f"echo {word}"
                turns.append(answer["content"])

    await asyncio.gather(*(one(number, session) for number, session in enumerate(sessions)))
    engines = [world.engine, other]
    assert sum([await identity(session.rollout_id, engines) for session in sessions[::10]]) == 60
    assert await Call.objects.filter(state="completed").acount() == 600
    for number, session in enumerate(sessions[::20]):
        texts = [
            node.message["content"] async for node in Node.objects.filter(rollout=session.rollout_id, sampled=True)
        ]
        assert texts == [f"echo {20 * number}-{turn}" for turn in range(3)]
