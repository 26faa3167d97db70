"""Malformed, huge, slow and hostile requests: refused in the dialect's own form, and no other session notices."""

import asyncio
import gzip
import json

import pytest
import zstandard
from asgiref.sync import sync_to_async

from environments.gateway import bodies
from environments.models import Call
from tests.environments.gateway.conftest import INSTRUCTION, chat, check_identity
from tests.environments.gateway.test_dialect_fuzz import BODIES, FORMS

PATH = "/v1/chat/completions"
NAMES = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages",
         "/v1beta/models/M:generateContent": "gemini"}  # fmt: skip


def without_media(value):
    if isinstance(value, dict):
        return {key: without_media(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_media(item) for item in value if not (isinstance(item, dict) and is_media(item))]
    return value


def is_media(item):
    return item.get("type") in ("image", "image_url") or "inlineData" in item


@pytest.mark.parametrize("path", NAMES)
async def test_every_refusal_is_in_the_dialects_own_form(world, path):
    session = await world.session(budgets={"max_context_tokens": 200})
    form = FORMS[NAMES[path]]
    good = {"content-type": "application/json"}
    cases = [
        (b"{", good, 400), (b"[]", good, 400), (b"\xff\xfe", good, 400), (b"[" * 100_000, good, 400),
        (b"x", {"content-encoding": "gzip"}, 400), (b"x", {"content-encoding": "zstd"}, 400),
        (gzip.compress(b"{}")[:-9], {"content-encoding": "gzip"}, 400), (b"x", {"content-encoding": "br"}, 415),
        (json.dumps(BODIES[path]).encode(), good, 400),
    ]  # fmt: skip
    async with world.client(session) as client:
        for body, headers, status in cases:
            response = await client.post(path, content=body, headers=headers)
            assert (response.status_code, bool(form(response.json()))) == (status, True), (body[:20], response.text)
        plain = json.dumps(without_media(BODIES[path])).encode()
        for encoding, packed in (("gzip", gzip.compress(plain)), ("zstd", zstandard.compress(plain)), ("", plain)):
            response = await client.post(path, content=packed, headers={"content-encoding": encoding})
            assert response.status_code == 400, response.text  # understood, and too long
            assert form(response.json())
            assert "exceed" in response.text or "too long" in response.text or "maximum context" in response.text
    refused = [call.error async for call in Call.objects.filter(rollout=session.rollout_id)]
    assert len(refused) == 1
    assert world.engine.num_started == 0


async def test_an_unpacked_bomb_is_refused(world, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", 1 << 20)
    session = await world.session()
    async with world.client(session) as client:
        for encoding, pack in (("gzip", gzip.compress), ("zstd", zstandard.compress)):
            bomb = pack(b" " * (64 << 20))
            assert len(bomb) < 1 << 20
            response = await client.post(PATH, content=bomb, headers={"content-encoding": encoding})
            assert response.status_code == 413


@pytest.mark.slow
async def test_a_huge_body_and_slow_ones_leave_other_sessions_alone(world, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_PATIENCE_S", 0.5)
    hostile, other = await world.session(budgets={"max_context_tokens": 100_000}), await world.session()
    socket = str(world.directory / world.gateway.socket_name)
    slow = []
    for sent in (b"POST /s/", b"POST /s/" + hostile.key.encode() + PATH.encode() + b" HTTP/1.1\r\nhost: x\r\n"
                 b"content-length: 1000\r\n\r\n{"):  # fmt: skip
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(sent)
        await writer.drain()
        slow.append((reader, writer))
    async with world.client(hostile) as bad, world.client(other) as good:
        huge = asyncio.create_task(bad.post(PATH, json=chat("x" * (50 << 20)), timeout=300))
        done = 0
        while not huge.done() or done < 3:
            response = await good.post(PATH, json=chat(INSTRUCTION), timeout=300)
            assert response.status_code == 200
            done += 1
    assert huge.result().status_code == 400
    assert huge.result().json()["error"]["code"] == "context_length_exceeded"
    said = await asyncio.wait_for(slow[1][0].read(4000), 60)
    assert b" 408 " in said.split(b"\r\n")[0]
    for _, writer in slow:
        writer.close()
    assert await sync_to_async(check_identity)(other.rollout_id, [world.engine]) == done
