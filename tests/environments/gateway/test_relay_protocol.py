"""kill -9 of a gateway in mid-call is nothing that a harness can see: the relay protocol, byte by byte."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from django.db import connection

from environments.models import Call, Node, Session
from tests.environments.gateway.conftest import INSTRUCTION, chat, events
from tests.environments.gateway.test_faults import until

pytestmark = pytest.mark.slow

PATH = "/v1/chat/completions"


class GatewayProcess:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def start(self) -> "GatewayProcess":
        name = connection.settings_dict["NAME"]
        url = os.environ["DATABASE_URL"].replace("/gyre?", f"/{name}?")
        environment = os.environ | {"DATABASE_URL": url, "GYRE_RUNTIME": str(self.directory)}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "environments.gateway", env=environment, stderr=asyncio.subprocess.DEVNULL
        )
        await until(lambda: self.is_linked(), 120)
        return self

    async def is_linked(self) -> bool:
        link = self.directory / "gateway" / "gateway.sock"
        return link.is_symlink() and f"gw-{self.process.pid}-" in str(link.readlink())

    async def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()


async def exchange(socket: Path, key: str, body: dict, call: str, offset: int, stop_after: int | None = None):
    """What a relay does for one attempt: (status, body bytes from the offset, whether the end came)."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    raw = json.dumps(body).encode()
    head = (
        f"POST /s/{key}{PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n"
        f"x-gyre-relay-call: {call}\r\nx-gyre-relay-offset: {offset}\r\nconnection: close\r\n\r\n"
    )
    writer.write(head.encode() + raw)
    got = b""
    try:
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(headers.split(" ", 2)[1])
        assert status == 503 or "x-gyre-relay: 1" in headers
        while size := int(await reader.readline() or b"-1", 16):
            if size < 0:
                return status, got, False
            got += (await reader.readexactly(size + 2))[:-2]
            if stop_after is not None and len(got) >= stop_after:
                return status, got, False
        return status, got, True
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return 0, got, False
    finally:
        writer.close()


async def resume(socket: Path, key: str, body: dict, call: str, got: bytes) -> bytes:
    """Ask again, as a relay does, until the end has come."""
    async with asyncio.timeout(120):
        while True:
            try:
                status, more, ended = await exchange(socket, key, body, call, len(got))
            except OSError:
                status, more, ended = 0, b"", False
            if status == 200:
                got += more
            if ended and status == 200:
                return got
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_stream_goes_on_byte_exactly_in_a_new_gateway(world, signal_number):
    session = await world.session(delivery="stream")
    text = "".join(f"{i} é😀 " for i in range(40))
    first_bytes = text.encode()

    def rule(prompt):
        # goes on from what of the answer is already in the prompt
        answer = bytes(i for i in prompt.ids[prompt.ids.index(258) + 1 :])
        return [*first_bytes[len(answer) :], 257]

    world.engine.rule = rule
    world.engine.tokens_per_s = 150
    runtime = world.directory / "rt"
    socket = runtime / "gateway" / "gateway.sock"
    gateway = await GatewayProcess(runtime).start()
    body = chat("system: S", INSTRUCTION, stream=True)
    call = "ab" * 16
    _, got, ended = await exchange(socket, session.key, body, call, 0, stop_after=6000)
    assert not ended
    assert len(got) >= 6000
    await gateway.kill(signal_number)
    second = await GatewayProcess(runtime).start()
    whole = await resume(socket, session.key, body, call, got)
    deltas = [event["choices"][0]["delta"].get("content", "") for event in events(whole.decode())[:-1]]
    assert "".join(deltas) == text
    row = await Call.objects.aget(rollout=session.rollout_id)
    assert row.state == "completed"
    node = await Node.objects.aget(rollout=session.rollout_id, sampled=True)
    assert node.message["content"] == text
    assert len(node.behaviour_logprobs) == 4 * (len(first_bytes) + 1)
    # and once more from every third of the body, also from a third gateway that only has the record
    await second.kill()
    third = await GatewayProcess(runtime).start()
    for offset in (0, len(whole) // 3, len(whole) - 1):
        _, rest, ended = await exchange(socket, session.key, body, call, offset)
        assert ended
        assert whole[offset:] == rest
    await third.kill()


async def test_a_whole_answer_survives_two_gateways_that_die(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "0123456789"[len([i for i in prompt.ids if 48 <= i < 58]) :]
    world.engine.pause()
    runtime = world.directory / "rt"
    socket = runtime / "gateway" / "gateway.sock"
    body = chat(INSTRUCTION)
    gateway = await GatewayProcess(runtime).start()
    asking = asyncio.create_task(resume(socket, session.key, body, "cd" * 16, b""))
    for _ in range(2):
        started = world.engine.num_started
        await until(lambda n=started: world.engine.num_started > n)
        await gateway.kill()
        gateway = await GatewayProcess(runtime).start()
    world.engine.resume()
    answer = json.loads(await asking)
    await gateway.kill()
    assert answer["choices"][0]["message"]["content"] == "0123456789"
    assert await Call.objects.filter(rollout=session.rollout_id).acount() == 1


async def test_a_second_gateway_forwards_to_the_holder_and_takes_over_when_it_dies(world):
    session = await world.session()
    runtime = world.directory / "rt"
    socket = runtime / "gateway" / "gateway.sock"
    first = await GatewayProcess(runtime).start()
    _, _, ended = await exchange(socket, session.key, chat("a"), "aa" * 16, 0)
    assert ended
    holder = (await Session.objects.aget(id=session.id)).gateway
    assert f"gw-{first.process.pid}-" in holder
    second = await GatewayProcess(runtime).start()
    status, got, ended = await exchange(socket, session.key, chat("b"), "bb" * 16, 0)
    assert (status, ended) == (200, True)
    assert json.loads(got)["choices"]
    assert (await Session.objects.aget(id=session.id)).gateway == holder
    await first.kill()
    status, _, ended = await exchange(socket, session.key, chat("c"), "cc" * 16, 0)
    assert (status, ended) == (200, True)
    assert f"gw-{second.process.pid}-" in (await Session.objects.aget(id=session.id)).gateway
    indices = [call.index async for call in Call.objects.filter(rollout=session.rollout_id).order_by("index")]
    assert indices == [0, 1, 2]
    await second.kill()


async def test_when_the_linked_gateway_dies_another_takes_the_link(world):
    runtime = world.directory / "rt"
    socket = runtime / "gateway" / "gateway.sock"
    first = await GatewayProcess(runtime).start()
    second = await GatewayProcess(runtime).start()
    assert f"gw-{second.process.pid}-" in str(socket.readlink())
    await second.kill()
    await until(lambda: f"gw-{first.process.pid}-" in str(socket.readlink()))
    await first.kill()


async def test_a_gateway_whose_sockets_were_cleaned_away_ends_so_that_it_is_started_again(world):
    runtime = world.directory / "rt"
    lonely = await GatewayProcess(runtime).start()
    shutil.rmtree(runtime)
    async with asyncio.timeout(30):
        assert await lonely.process.wait() == 1
    again = await GatewayProcess(runtime).start()
    await again.kill()


async def test_the_same_gateway_resumes_a_cut_exchange_and_takes_the_ack(world):
    session = await world.session(delivery="stream")
    world.engine.rule = lambda prompt: "x" * 60
    world.engine.tokens_per_s = 100
    socket = world.directory / world.gateway.socket_name
    body = chat("hi", stream=True)
    _, got, _ = await exchange(socket, session.key, body, "ee" * 16, 0, stop_after=2000)
    whole = await resume(socket, session.key, body, "ee" * 16, got)
    assert sum(len(e["choices"][0]["delta"].get("content", "")) for e in events(whole.decode())[:-1]) == 60
    async with world.client(session) as client:
        ack = await client.post("http://gw/relay/ack", headers={"x-gyre-relay-call": "ee" * 16})
    assert ack.status_code == 204
    assert world.engine.num_started == 1


async def test_keep_alives_are_counted_by_the_relay_and_made_again(world, monkeypatch):
    from environments.gateway import delivery

    monkeypatch.setattr(delivery, "SILENT_S", 0.05)
    monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.03)
    session = await world.session(delivery="stream")
    await world.set_engine("engine", state="holding")
    socket = world.directory / world.gateway.socket_name
    body = chat("hi", stream=True)
    _, got, _ = await exchange(socket, session.key, body, "ff" * 16, 0, stop_after=50)
    assert got.startswith(b": keep-alive\n\n")
    await world.set_engine("engine", state="serving")
    whole = await resume(socket, session.key, body, "ff" * 16, got)
    _, again, _ = await exchange(socket, session.key, body, "ff" * 16, 20)
    assert whole[20:] == again
    assert events(whole.decode())[-1] == "[DONE]"
    assert whole.count(b"data: [DONE]") == 1
