"""Engines that fail, clients that hang up and retry, weights that change: the harness sees one answer."""

import asyncio
import contextlib
import json
import time

from asgiref.sync import sync_to_async

from environments import live
from environments.gateway import delivery as delivery_module
from environments.gateway import readers as readers_module
from environments.models import Call, Engine, Node, Rollout, Session
from tests.environments.gateway.conftest import INSTRUCTION, chat, check_identity, events, unpack

PATH = "/v1/chat/completions"
identity = sync_to_async(check_identity)


async def until(condition, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while True:
            value = condition()
            value = await value if asyncio.iscoroutine(value) else value
            if value:
                return value
            await asyncio.sleep(0.01)


async def hang_up(client, body, *, when):
    """Ask, and go away once `when` holds."""
    asking = asyncio.create_task(client.post(PATH, json=body))
    await until(when)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def sampled_node(session):
    return await Node.objects.aget(rollout=session.rollout_id, sampled=True)


async def test_an_engine_that_dies_in_mid_call_is_continued_on_another_in_one_node(world):
    session = await world.session()
    other, row = await world.add_engine("other", version=4, turn_order=-1)
    other.version = "4"
    world.engine.fail_after = 4
    world.engine.rule = other.rule = lambda prompt: "0123456789"[len([i for i in prompt.ids if 48 <= i < 58]) :]
    first = await Engine.objects.aget(name="engine")
    async with world.client(session) as client:
        body = (await client.post(PATH, json=chat(INSTRUCTION))).json()
    assert body["choices"][0]["message"]["content"] == "0123456789"
    node = await sampled_node(session)
    assert node.engines == [str(first.id), str(row.id)]
    assert node.version_spans == [[1, 5, 3], [5, 12, 4]]
    assert (await Rollout.objects.aget(id=session.rollout_id)).oldest_version == 3
    call = await Call.objects.aget(rollout=session.rollout_id)
    assert (call.num_sampled_tokens, call.finish_reason, call.state) == (11, "stop", "completed")
    assert other.requests[0].prompt[-4:] == [*b"0123"]


async def test_a_crash_of_postgres_that_takes_the_opening_of_a_call_is_nothing_that_the_harness_sees(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "0123456789"
    async with world.client(session) as client:
        await client.post(PATH, json=chat(INSTRUCTION))
        world.engine.tokens_per_s = 100
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION, "0123456789", "Go on.")))
        await until(lambda: len(world.engine.requests) == 2 and world.engine.requests[1].produced)
        world.engine.pause()
        first = await Call.objects.aget(rollout=session.rollout_id, index=0)
        await Node.objects.filter(rollout=session.rollout_id, index__gt=first.answer_node).adelete()
        await Call.objects.filter(rollout=session.rollout_id, index=1).adelete()
        world.engine.resume()
        assert (await call).json()["choices"][0]["message"]["content"] == "0123456789"
    assert await identity(session.rollout_id, [world.engine]) == 2
    nodes = [node async for node in Node.objects.filter(rollout=session.rollout_id).order_by("index")]
    assert [(node.index, node.parent) for node in nodes] == [(0, None), (1, 0), (2, 1), (3, 2)]
    assert (await Rollout.objects.aget(id=session.rollout_id)).num_calls == 2


async def test_a_gateway_that_lost_its_session_writes_no_end_of_a_call(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "0123456789"
    world.engine.tokens_per_s = 100
    async with world.client(session) as client:
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION)))
        await until(lambda: world.engine.requests and world.engine.requests[0].produced)
        await Session.objects.filter(id=session.id).aupdate(gateway="another-host/gw.sock")
        assert (await call).status_code == 503
    assert await Node.objects.filter(rollout=session.rollout_id, sampled=True).acount() == 0
    assert await Call.objects.filter(rollout=session.rollout_id, state="open").acount() == 1


async def test_an_engine_that_leaves_for_training_is_left_at_once(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "0123456789"
    world.engine.tokens_per_s = 1000
    async with world.client(session) as client:
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION)))
        world.engine.pause()
        await until(lambda: world.engine.num_started == 1)
        other, _ = await world.add_engine("other")
        await world.set_engine("engine", state="stopped")
        assert (await call).json()["choices"][0]["finish_reason"] == "stop"
    assert other.num_started == 1
    world.engine.resume()


async def test_calls_hold_while_no_engine_serves_and_go_on_when_one_does(world):
    session = await world.session()
    await world.set_engine("engine", state="holding")
    async with world.client(session) as client:
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION)))
        await until(lambda: Call.objects.filter(rollout=session.rollout_id).aexists())
        await until(lambda: held_reason(session))
        assert not call.done()
        await world.set_engine("engine", state="serving")
        assert (await call).status_code == 200
    row = await Call.objects.aget(rollout=session.rollout_id)
    assert row.held_s > 0


async def held_reason(session):
    page = await live.read(session.rollout_id, None)
    return next((e.data["hold_reason"] for e in page.entries if e.kind == "call" and e.data["hold_reason"]), None)


async def test_a_weight_change_in_mid_call_gives_the_engines_own_spans(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "0123456789"
    world.engine.tokens_per_s = 200
    async with world.client(session) as client:
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION)))
        await until(lambda: world.engine.requests and len(world.engine.requests[0].produced) >= 3)
        world.engine.pause()
        await asyncio.sleep(0.02)
        num = len(world.engine.requests[0].produced)
        world.engine.version = "4"
        world.engine.resume()
        await call
    assert (await sampled_node(session)).version_spans == [[1, 1 + num, 3], [1 + num, 12, 4]]


async def test_a_client_that_hangs_up_leaves_an_aborted_call_and_the_session_goes_on(world, monkeypatch):
    monkeypatch.setattr(readers_module, "HANG_UP_GRACE_S", 0.05)
    session = await world.session()
    world.engine.rule = lambda prompt: "0123456789" * 50
    world.engine.tokens_per_s = 30
    async with world.client(session) as client:
        await hang_up(
            client,
            chat(INSTRUCTION),
            when=lambda: world.engine.requests and len(world.engine.requests[0].produced) >= 3,
        )
        await until(lambda: Call.objects.filter(rollout=session.rollout_id, state="aborted").aexists())
        await until(lambda: asyncio.sleep(0, world.engine.requests[0].was_cut))
        world.engine.tokens_per_s = 0
        await client.post(PATH, json=chat(INSTRUCTION))
    aborted = await Call.objects.aget(rollout=session.rollout_id, state="aborted")
    node = await Node.objects.aget(rollout=session.rollout_id, index=aborted.answer_node)
    assert (node.trainable, node.flags) == (False, ["aborted"])
    assert 0 < len(unpack(node.ids)) - node.opener_length < 500
    again = await Call.objects.aget(rollout=session.rollout_id, state="completed")
    assert again.retry_of_id == aborted.id


async def test_a_retry_joins_the_call_in_flight(world, monkeypatch):
    monkeypatch.setattr(readers_module, "HANG_UP_GRACE_S", 60.0)
    session = await world.session()
    world.engine.pause()
    async with world.client(session) as client:
        await hang_up(client, chat(INSTRUCTION), when=lambda: world.engine.num_started)
        retry = asyncio.create_task(client.post(PATH, json=dict(reversed(chat(INSTRUCTION, user="other").items()))))
        await asyncio.sleep(0.05)
        world.engine.resume()
        assert (await retry).status_code == 200
    assert world.engine.num_started == 1
    assert await Call.objects.filter(rollout=session.rollout_id).acount() == 1


async def test_a_marked_retry_of_a_delivered_answer_gets_the_same_answer(world):
    session = await world.session()
    world.engine.rule = lambda prompt: f"answer {prompt.number}"
    async with world.client(session) as client:
        first = await client.post(PATH, json=chat(INSTRUCTION))
        retry = await client.post(PATH, json=chat(INSTRUCTION), headers={"x-stainless-retry-count": "1"})
    assert first.content == retry.content


async def test_a_whole_answer_that_nobody_took_is_aborted_and_promoted_when_used(world, monkeypatch):
    monkeypatch.setattr(readers_module, "HANG_UP_GRACE_S", 1.0)
    session = await world.session()
    world.engine.rule = lambda prompt: '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    world.engine.pause()
    async with world.client(session) as client:
        await hang_up(client, chat(INSTRUCTION), when=lambda: world.engine.num_started)
        world.engine.resume()
        await until(lambda: Call.objects.filter(rollout=session.rollout_id, state="aborted").aexists())
        node = await sampled_node(session)
        assert not node.trainable
        message = {**node.message, "tool_calls": [wire(call) for call in node.message["tool_calls"]]}
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "r"}
        await client.post(PATH, json=chat(INSTRUCTION, message, result))
    await node.arefresh_from_db()
    assert node.trainable
    assert (await Call.objects.aget(rollout=session.rollout_id, index=0)).state == "completed"


def wire(call):
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}


async def test_silence_becomes_headers_and_comments_and_the_stream_goes_on(world, monkeypatch):
    monkeypatch.setattr(delivery_module, "SILENT_S", 0.05)
    monkeypatch.setattr(delivery_module, "KEEP_ALIVE_S", 0.03)
    session = await world.session(delivery="stream")
    await world.set_engine("engine", state="holding")
    async with world.client(session) as client, client.stream("POST", PATH, json=chat("hi", stream=True)) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        await world.set_engine("engine", state="serving")
        rest = "\n".join([line async for line in lines])
    assert events(rest)[-1] == "[DONE]"


async def test_a_waiting_json_body_is_kept_warm_with_blanks(world, monkeypatch):
    monkeypatch.setattr(delivery_module, "SILENT_S", 0.05)
    monkeypatch.setattr(delivery_module, "KEEP_ALIVE_S", 0.03)
    session = await world.session()
    await world.set_engine("engine", state="holding")
    body = b""
    async with (
        world.client(session) as client,
        client.stream("POST", PATH, json=chat("hi"), headers={"accept-encoding": "identity"}) as response,
    ):
        async for piece in response.aiter_raw():
            body += piece
            if len(body) >= 3 and not body.strip():
                await world.set_engine("engine", state="serving")
    assert body.startswith(b"   ")
    assert json.loads(body)["choices"]


async def test_an_engine_that_refuses_the_request_ends_the_call_not_the_session(world):
    session = await world.session()
    world.engine.refuse_status = 400
    async with world.client(session) as client:
        response = await client.post(PATH, json=chat(INSTRUCTION))
        assert response.status_code == 500
        assert "scripted refusal" in response.json()["error"]["message"]
        world.engine.refuse_status = 0
        assert (await client.post(PATH, json=chat(INSTRUCTION))).status_code == 200
    states = [call.state async for call in Call.objects.filter(rollout=session.rollout_id).order_by("index")]
    assert states == ["failed", "completed"]


async def test_an_unauthorised_gateway_holds_and_an_authorised_one_is_answered(world):
    session = await world.session()
    world.engine.api_key = "secret"
    async with world.client(session) as client:
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION)))
        await asyncio.sleep(0.1)
        assert not call.done()
        await world.set_engine("engine", api_key="secret")
        assert (await call).status_code == 200


async def test_rollouts_stick_to_an_engine_and_new_ones_go_to_the_least_loaded(world):
    other, _ = await world.add_engine("other")
    sessions = [await world.session() for _ in range(4)]
    for session in sessions:
        async with world.client(session) as client:
            for text in ("a", "b", "c"):
                assert (await client.post(PATH, json=chat(text))).status_code == 200
    assert (world.engine.num_started, other.num_started) == (6, 6)


async def test_what_is_committed_is_in_the_live_log_in_order(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "a é b"
    async with world.client(session) as client:
        await client.post(PATH, json=chat("system: S", INSTRUCTION))
    await until(lambda: num_kind(session, "node", 3))
    page = await live.read(session.rollout_id, None)
    kinds = [e.kind for e in page.entries]
    assert kinds[:3] == ["node", "node", "call"]
    assert kinds[-2:] == ["node", "call"]
    assert set(kinds[3:-2]) == {"tokens"}
    tokens = [e.data for e in page.entries if e.kind == "tokens"]
    assert "".join(text for data in tokens for text in data["texts"]) == "a é b"
    assert [data["start"] for data in tokens] == list(range(len(tokens)))
    assert page.entries[-1].data["state"] == "completed"
    assert page.entries[-2].data["sampled"]


async def num_kind(session, kind, count):
    return [e.kind for e in (await live.read(session.rollout_id, None)).entries].count(kind) >= count


async def test_a_slow_answer_does_not_hold_up_another_session(world):
    slow, fast = await world.session(), await world.session()
    world.engine.rule = lambda prompt: "x" * (200 if "slow" in prompt.text else 1)
    world.engine.tokens_per_s = 100
    async with world.client(slow) as one, world.client(fast) as two:
        long = asyncio.create_task(one.post(PATH, json=chat("slow")))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await two.post(PATH, json=chat("quick"))
        assert time.monotonic() - began < 1.0
        long.cancel()


async def test_an_expert_answers_in_an_engines_place_without_logprobs(world, tmp_path):
    from environments.models import Harness, Task

    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text("#!/bin/sh\necho ok > out.txt\n")
    session = await world.session(pool="experts")
    await Task.objects.all().aupdate(directory=str(tmp_path))
    await Harness.objects.all().aupdate(program="mini-swe-agent")
    await world.add_engine("expert", pool="experts", base_url="expert://mini-swe-agent")
    async with world.client(session) as client:
        body = (await client.post(PATH, json=chat(INSTRUCTION))).json()
    assert "echo ok > out.txt" in body["choices"][0]["message"]["content"]
    node = await sampled_node(session)
    assert node.behaviour_logprobs is None
    assert node.version_spans == [[1, len(unpack(node.ids)), -1]]
    assert node.trainable
    assert (await Rollout.objects.aget(id=session.rollout_id)).oldest_version is None


async def test_an_expert_without_a_solution_ends_the_call_with_words(world):
    session = await world.session(pool="experts")
    await world.add_engine("expert", pool="experts", base_url="expert://mini-swe-agent")
    async with world.client(session) as client:
        response = await client.post(PATH, json=chat(INSTRUCTION))
    assert response.status_code == 500
    assert "solve.sh" in response.json()["error"]["message"]


async def test_a_renderer_that_breaks_fails_its_call_and_not_the_session(world, monkeypatch):
    from environments.rendering.scripted import ScriptedRenderer

    session = await world.session()
    async with world.client(session) as client:
        with monkeypatch.context() as broken:
            broken.setattr(ScriptedRenderer, "parse", lambda self, ids: 1 / 0)
            response = await client.post(PATH, json=chat(INSTRUCTION))
            assert response.status_code == 500
            assert "ZeroDivisionError" in response.json()["error"]["message"]
        assert (await client.post(PATH, json=chat(INSTRUCTION))).status_code == 200
    states = [call.state async for call in Call.objects.filter(rollout=session.rollout_id).order_by("index")]
    assert states == ["failed", "completed"]


async def test_connections_to_postgres_that_break_in_mid_call_are_not_seen_by_the_harness(world):
    from django.db import connection

    def end_connections():
        with connection.cursor() as cursor:
            cursor.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = %s",
                [connection.settings_dict["NAME"]],
            )

    session = await world.session()
    world.engine.pause()
    async with world.client(session) as client:
        call = asyncio.create_task(client.post(PATH, json=chat(INSTRUCTION)))
        await until(lambda: world.engine.num_started == 1)
        await sync_to_async(end_connections)()
        world.engine.resume()
        assert (await call).status_code == 200
        await sync_to_async(end_connections)()
        assert (await client.post(PATH, json=chat("again"))).status_code == 200
    assert await identity(session.rollout_id, [world.engine]) == 2


async def test_a_session_of_a_finished_rollout_ends_while_another_of_it_goes_on(world):
    """A rollout's second session (its sandbox was lost) continues the same tree."""
    from environments.models import Session

    first = await world.session()
    async with world.client(first) as client:
        await client.post(PATH, json=chat(INSTRUCTION))
    await Session.objects.filter(id=first.id).aupdate(finished_at=first.created_at)
    second = await Session.objects.acreate(rollout_id=first.rollout_id)
    async with world.client(first) as client:
        assert (await client.post(PATH, json=chat("late"))).status_code == 409
    async with world.client(second) as client:
        assert (await client.post(PATH, json=chat(INSTRUCTION))).status_code == 200
    assert await Node.objects.filter(rollout=first.rollout_id, parent=None).acount() == 1
    assert [c.index async for c in Call.objects.filter(rollout=first.rollout_id).order_by("index")] == [0, 1]


async def test_drift_of_one_turn_is_counted_once_however_long_the_run(world):
    session = await world.session()
    world.engine.rule = lambda prompt: f"  turn {prompt.number}  "
    history = [INSTRUCTION]
    async with world.client(session) as client:
        for i in range(4):
            answer = (await client.post(PATH, json=chat(*history))).json()["choices"][0]["message"]["content"]
            history += [answer.strip(), f"go {i}"]
    assert (await Rollout.objects.aget(id=session.rollout_id)).drift == {"shape": 3}
