"""The gateway as a harness sees it, over OpenAI Chat."""

import asyncio

import numpy as np
import pytest
from asgiref.sync import sync_to_async

from environments.models import Call, Node, Rollout
from environments.scripted.engine import logprob_of
from tests.environments.gateway.conftest import INSTRUCTION, chat, check_identity, events, unpack

PATH = "/v1/chat/completions"
check_identity_async = sync_to_async(check_identity)


async def test_a_whole_answer_is_recorded_exactly(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "Hello é."
    async with world.client(session) as client:
        response = await client.post(PATH, json=chat("system: S", INSTRUCTION))
    body = response.json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello é."}
    assert body["choices"][0]["finish_reason"] == "stop"
    node = await Node.objects.aget(rollout=session.rollout_id, sampled=True)
    answer = [*"Hello é.".encode(), 257]
    assert unpack(node.ids)[node.opener_length :] == answer
    assert np.allclose(np.frombuffer(node.behaviour_logprobs, "<f4"), [logprob_of(i) for i in answer])
    assert node.version_spans == [[1, 1 + len(answer), 3]]
    assert node.trainable
    assert node.branch_role == "main"
    assert body["usage"]["completion_tokens"] == len(answer)
    rollout = await Rollout.objects.aget(id=session.rollout_id)
    assert (rollout.num_calls, rollout.sampled_tokens, rollout.num_branches) == (1, len(answer), 1)
    assert (rollout.oldest_version, rollout.newest_version) == (3, 3)
    assert await check_identity_async(session.rollout_id, [world.engine]) == 1


async def test_a_conversation_is_one_branch_and_sampled_ids_are_not_encoded_again(world):
    session = await world.session()
    world.engine.rule = lambda prompt: f"answer {prompt.number}"
    async with world.client(session) as client:
        turns = ["system: S", INSTRUCTION]
        for i in range(4):
            answer = (await client.post(PATH, json=chat(*turns))).json()["choices"][0]["message"]["content"]
            turns += [answer, f"result {i}"]
    rollout = await Rollout.objects.aget(id=session.rollout_id)
    assert rollout.num_branches == 1
    assert await Node.objects.filter(rollout=rollout).acount() == 2 + 4 + 3
    assert await check_identity_async(session.rollout_id, [world.engine]) == 4


@pytest.mark.parametrize("delivery", ["whole", "stream"])
async def test_a_stream_says_the_same_as_a_whole_answer(world, delivery):
    session = await world.session(delivery=delivery)
    world.engine.rule = lambda prompt: 'I look. <tool_call>\n{"name": "bash", "arguments": {"c": "ls"}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    body = chat("system: S", INSTRUCTION, stream=True, tools=tools, stream_options={"include_usage": True})
    async with world.client(session) as client:
        got = events((await client.post(PATH, json=body)).text)
    assert got[-1] == "[DONE]"
    assert got[-2]["choices"] == []
    assert got[-2]["usage"]["completion_tokens"] > 10
    deltas = [event["choices"][0]["delta"] for event in got[:-2]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas).strip() == "I look."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(c["index"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        (0, "bash", '{"c": "ls"}')
    ]
    assert got[-3]["choices"][0]["finish_reason"] == "tool_calls"
    node = await Node.objects.aget(rollout=session.rollout_id, sampled=True)
    assert node.message["tool_calls"][0]["id"] == calls[0]["id"]


async def test_no_code_point_is_broken_by_token_borders(world):
    session = await world.session(delivery="stream")
    world.engine.rule = lambda prompt: "a é 日本 😀 z"
    async with world.client(session) as client:
        got = events((await client.post(PATH, json=chat("system: S", INSTRUCTION, stream=True))).text)
    text = [e["choices"][0]["delta"].get("content", "") for e in got[:-1]]
    assert "".join(text) == "a é 日本 😀 z"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in text)


async def test_unknown_and_finished_sessions_and_two_keys_are_refused_by_rule(world):
    session, other = await world.session(), await world.session()
    async with world.client(session) as client:
        base = "http://gw"
        post = {"json": chat("hi")}
        assert (await client.post(f"{base}/s/nobody{PATH}", **post)).status_code == 404
        assert (await client.post(f"{base}{PATH}", **post)).status_code == 401
        bearer = {"authorization": "Bearer nobody"}
        assert (await client.post(f"{base}{PATH}", headers=bearer, **post)).status_code == 401
        bearer = {"authorization": f"Bearer {session.key}"}
        assert (await client.post(f"{base}{PATH}", headers=bearer, **post)).status_code == 200
        bearer = {"authorization": f"Bearer {other.key}"}
        assert (await client.post(PATH, headers=bearer, **post)).status_code == 409
        assert (await client.head(f"{base}/s/{session.key}")).status_code == 200
        assert (await client.head(f"{base}/s/nobody")).status_code == 200
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "scripted"
        assert (await client.get("/v1/nothing")).status_code == 404
        session.finished_at = session.created_at
        await session.asave()
        response = await client.post(PATH, **post)
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "session_finished"


async def test_context_overflow_is_openais_exact_error_and_ends_the_rollout(world):
    session = await world.session(budgets={"max_context_tokens": 64})
    async with world.client(session) as client:
        response = await client.post(PATH, json=chat("x" * 100))
        again = await client.post(PATH, json=chat("x" * 101))
    assert response.status_code == again.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 64 tokens. However, ")
    assert (await Rollout.objects.aget(id=session.rollout_id)).ending == "context_overflow"
    assert await Call.objects.filter(rollout=session.rollout_id, state="refused").acount() == 1


async def test_the_call_after_the_last_budgeted_one_ends_the_rollout(world):
    session = await world.session(budgets={"max_calls": 2})
    async with world.client(session) as client:
        codes = [(await client.post(PATH, json=chat(f"say {i}"))).status_code for i in range(2)]
        assert (await Rollout.objects.aget(id=session.rollout_id)).ending == ""
        codes += [(await client.post(PATH, json=chat(f"more {i}"))).status_code for i in range(2)]
    assert codes == [200, 200, 409, 409]
    assert (await Rollout.objects.aget(id=session.rollout_id)).ending == "budget_reached"


async def test_the_token_budget_cuts_the_answer(world):
    session = await world.session(budgets={"max_sampled_tokens": 5})
    world.engine.rule = lambda prompt: "0123456789"
    async with world.client(session) as client:
        body = (await client.post(PATH, json=chat("hi"))).json()
        code = (await client.post(PATH, json=chat("hi", "01234", "more"))).status_code
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "01234"
    assert code == 409


async def test_an_answer_cut_by_length_is_closed_in_the_next_prompt_and_stays_on_its_branch(world):
    session = await world.session(sampling={"max_tokens": 4})
    world.engine.rule = lambda prompt: "abcdefgh"
    async with world.client(session) as client:
        await client.post(PATH, json=chat(INSTRUCTION))
        await client.post(PATH, json=chat(INSTRUCTION, "abcd", "go on"))
    assert (await Rollout.objects.aget(id=session.rollout_id)).num_branches == 1
    assert await check_identity_async(session.rollout_id, [world.engine]) == 2


async def test_the_runs_sampling_is_imposed_and_the_harness_wish_is_kept(world):
    session = await world.session(sampling={"temperature": 0.7, "max_tokens": 9, "top_k": 5})
    async with world.client(session) as client:
        wish = chat("hi", temperature=0, max_tokens=64000, user="u", strange={"a": 1})
        assert (await client.post(PATH, json=wish)).status_code == 200
    params = world.engine.requests[0].params
    assert (params["temperature"], params["max_tokens"], params["top_k"]) == (0.7, 9, 5)
    call = await Call.objects.aget(rollout=session.rollout_id)
    assert call.requested == {"model": "M", "temperature": 0, "max_tokens": 64000}
    assert call.unknown == {"user": "u", "strange": {"a": 1}}
    assert call.imposed["temperature"] == 0.7


@pytest.mark.parametrize(
    ("more", "param"),
    [({"n": 2}, "n"), ({"stop": ["x"]}, "stop"), ({"tool_choice": "required"}, "tool_choice"),
     ({"response_format": {"type": "json_object"}}, "response_format"), ({"messages": []}, "messages"),
     ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]")],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_name(world, more, param):
    session = await world.session()
    async with world.client(session) as client:
        response = await client.post(PATH, json=chat("hi") | more)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_hostile_bodies_get_an_error_and_store_nothing(world):
    session = await world.session()
    async with world.client(session) as client:
        for content in (b"", b"{", b"[]", b"\xff\xfe", b'"x"', b"[" * 100_000):
            assert (await client.post(PATH, content=content)).status_code == 400
        assert (await client.post(PATH, content=b"x", headers={"content-encoding": "gzip"})).status_code == 400
        assert (await client.post(PATH, content=b"x", headers={"content-encoding": "br"})).status_code == 415
    assert not await Call.objects.filter(rollout=session.rollout_id).aexists()


async def test_nul_and_lone_surrogates_go_through_and_are_stored_reversibly(world):
    from environments.text import restore_json

    session = await world.session()
    world.engine.rule = lambda prompt: "a\x00b"
    async with world.client(session) as client:
        raw = b'{"model":"M","messages":[{"role":"user","content":"x\\u0000y\\ud800z"}]}'
        response = await client.post(PATH, content=raw)
        assert response.json()["choices"][0]["message"]["content"] == "a\x00b"
    nodes = [restore_json(n.message) async for n in Node.objects.filter(rollout=session.rollout_id).order_by("index")]
    assert nodes[0]["content"] == "x\x00y\ud800z"
    assert nodes[1]["content"] == "a\x00b"


async def test_compressed_bodies_are_read(world):
    import gzip
    import json

    import zstandard

    session = await world.session()
    raw = json.dumps(chat("hi")).encode()
    async with world.client(session) as client:
        for name, data in (("gzip", gzip.compress(raw)), ("zstd", zstandard.compress(raw))):
            assert (await client.post(PATH, content=data, headers={"content-encoding": name})).status_code == 200


async def test_two_requests_of_one_session_are_sampled_at_the_same_time(world):
    session = await world.session()
    world.engine.pause()
    async with world.client(session) as client:
        both = [asyncio.create_task(client.post(PATH, json=chat(f"question {i}"))) for i in range(2)]
        async with asyncio.timeout(5):
            while world.engine.num_started < 2:
                await asyncio.sleep(0.01)
        world.engine.resume()
        assert [r.status_code for r in await asyncio.gather(*both)] == [200, 200]
