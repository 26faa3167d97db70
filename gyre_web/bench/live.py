"""What a watcher waits for a token: from the engine's sampling to the browser's socket.

From:  `manage.py bench live`.
To:    p50_ms p99_ms lost doubled rss_growth_bytes, and the raw counts behind `ok`.
Holds: real processes: web (uvicorn, as `up` starts it), the engines' stand-in, Postgres, Valkey; the sockets are here.
       A token's time begins just before it is appended to the live log and ends when its frame was decoded.
Never: counts a slow reader's jumps as losses: it is told of them; what it is sent between two jumps must be dense.
       `not_arrived` is what a quick socket did not have when the wait ended although it still got frames: late, not lost.
       `lost` is a gap in what it was sent, or what was missing when nothing had come for STALLED_S.
"""

import asyncio
import math
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import websockets
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore

from environments.models import Harness, Model, Rollout, Task, TaskSet
from gyre_web.accounts.models import User
from gyre_web.bench._stage import Stage, cpu_s, stage

ROLLOUTS = 64
RATE = 50.0
SOCKETS = 32
SLOW = 4
SLOW_PAUSE_S = 1.5
"""A slow reader takes this long for a frame."""
TARGET_P99_MS = 150.0
TARGET_GROWTH_BYTES = 16 * 1024 * 1024
LEAD_S = 2.0
STALLED_S = 10.0
WAIT_S = 60.0
"""After the last token was due; a machine that is too slow for the load is still being served then."""


@dataclass(kw_only=True)
class Reader:
    """One socket and what it saw."""

    streams: list[str]
    slow: bool
    last: dict[str, int] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    heard: float = field(default_factory=time.monotonic)
    """When the last frame came."""
    frames: int = 0
    lost: int = 0
    doubled: int = 0
    jumps: int = 0


def run(quick: bool) -> dict[str, Any]:
    seconds = 10.0 if quick else 60.0
    with stage() as made:
        rollouts = [str(rollout.pk) for rollout in make_rollouts(ROLLOUTS)]
        cookie = sign_in()
        made.environment["GYRE_SECRET_KEY"] = settings.SECRET_KEY
        socket = made.directory / "web.sock"
        web = made.start(
            ["-m", "uvicorn", "gyre_web.asgi:application", "--uds", str(socket), "--log-level", "warning"], ready=socket
        )
        readers = make_readers(rollouts)
        begin = time.monotonic() + LEAD_S + 2.0
        start_writer(made, rollouts, int(RATE * seconds), begin)
        measured = asyncio.run(measure(web, readers, cookie, socket, seconds, begin))
    return build_result(readers, measured, seconds)


def make_readers(rollouts: list[str]) -> list[Reader]:
    """Every rollout is watched by one quick socket; the slow ones watch rollouts that others watch too."""
    quick = SOCKETS - SLOW
    readers = [Reader(streams=[f"rollout:{one}" for one in rollouts[i::quick]], slow=False) for i in range(quick)]
    return readers + [Reader(streams=[f"rollout:{one}" for one in rollouts[i::quick]], slow=True) for i in range(SLOW)]


def start_writer(made: Stage, rollouts: list[str], num_tokens: int, begin: float) -> None:
    """The engines' stand-in samples its first token at `begin` (monotonic, the same for every process)."""
    plan = made.directory / "plan.json"
    plan.write_bytes(orjson.dumps({"rollouts": rollouts, "rate": RATE, "num_tokens": num_tokens, "begin": begin}))
    writer = [sys.executable, "-m", "gyre_web.bench._live_writer", str(plan)]
    made.children.append(subprocess.Popen(writer, env=made.environment))


async def measure(
    web: "subprocess.Popen[bytes]", readers: list[Reader], cookie: str, socket: Path, seconds: float, begin: float
) -> dict[str, Any]:
    num_tokens = int(RATE * seconds)
    done = asyncio.Event()
    tasks = [asyncio.create_task(read(reader, cookie, socket, num_tokens, done)) for reader in readers]
    await asyncio.sleep(max(0.0, begin + 2.0 - time.monotonic()))
    rss_before, cpu_before = rss_bytes(web.pid), cpu_s(web.pid)
    await asyncio.sleep(seconds - 2.0)
    rss_after, used = rss_bytes(web.pid), cpu_s(web.pid) - cpu_before
    quick = [reader for reader in readers if not reader.slow]
    await wait_for_rest(tasks[: len(quick)], quick)
    stalled = [reader for reader in quick if time.monotonic() - reader.heard >= STALLED_S]
    done.set()
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    return {
        "rss_growth_bytes": rss_after - rss_before,
        "web_cpu_share": used / (seconds - 2.0),
        "num_tokens": num_tokens,
        "lost_in_silence": sum(num_missing(reader, num_tokens) for reader in stalled),
    }


async def wait_for_rest(tasks: list["asyncio.Task[None]"], readers: list[Reader]) -> None:
    """Until every quick socket has all, none has heard anything for STALLED_S, or WAIT_S are over."""
    deadline = time.monotonic() + WAIT_S
    while any(not task.done() for task in tasks) and time.monotonic() < deadline:
        if time.monotonic() - max(reader.heard for reader in readers) >= STALLED_S:
            return
        await asyncio.wait(tasks, timeout=0.2)


def num_missing(reader: Reader, num_tokens: int) -> int:
    return sum(num_tokens - reader.last.get(stream, 0) for stream in reader.streams)


async def read(reader: Reader, cookie: str, socket: Path, num_tokens: int, done: asyncio.Event) -> None:
    headers = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"}
    async with websockets.unix_connect(
        str(socket), "ws://localhost/live", origin=websockets.Origin("http://localhost"), additional_headers=headers
    ) as connection:
        for stream in reader.streams:
            await connection.send(orjson.dumps({"op": "subscribe", "stream": stream, "after": None}))
        while not done.is_set() and any(reader.last.get(stream, 0) < num_tokens for stream in reader.streams):
            message = orjson.loads(await connection.recv())
            now = time.monotonic()
            if message["op"] == "reset":
                reader.jumps += 1
                reader.last.pop(message["stream"], None)
                await connection.send(orjson.dumps({"op": "subscribe", "stream": message["stream"], "after": None}))
            elif message["op"] == "events":
                take(reader, message, now)
                if reader.slow:
                    await asyncio.sleep(SLOW_PAUSE_S)
                position = [message["epoch"], message["entries"][-1][0]]
                await connection.send(orjson.dumps({"op": "ack", "stream": message["stream"], "position": position}))


def take(reader: Reader, message: dict[str, Any], now: float) -> None:
    reader.frames += 1
    reader.heard = now
    stream = message["stream"]
    for n, _, data in message["entries"]:
        expected = reader.last.get(stream, 0) + 1
        reader.lost += max(0, n - expected)
        reader.doubled += int(n < expected)
        reader.last[stream] = max(n, expected - 1)
        reader.latencies_s.append(now - data["at"])


def build_result(readers: list[Reader], measured: dict[str, Any], seconds: float) -> dict[str, Any]:
    quick = [reader for reader in readers if not reader.slow]
    slow = [reader for reader in readers if reader.slow]
    latencies = sorted(latency for reader in quick for latency in reader.latencies_s)
    missing = sum(num_missing(reader, measured["num_tokens"]) for reader in quick)
    silent = measured["lost_in_silence"]
    result: dict[str, Any] = {
        "name": "live",
        "rollouts": ROLLOUTS,
        "tokens_per_s": ROLLOUTS * RATE,
        "sockets": SOCKETS,
        "slow_sockets": SLOW,
        "seconds": seconds,
        "p50_ms": percentile_ms(latencies, 0.5),
        "p90_ms": percentile_ms(latencies, 0.9),
        "p99_ms": percentile_ms(latencies, 0.99),
        "max_ms": percentile_ms(latencies, 1.0),
        "tokens_seen": len(latencies),
        "lost": sum(reader.lost for reader in readers) + silent,
        "not_arrived": missing - silent,
        "doubled": sum(reader.doubled for reader in readers),
        "frames_per_s": sum(reader.frames for reader in quick) / seconds,
        "slow_frames": sum(reader.frames for reader in slow),
        "slow_jumps": sum(reader.jumps for reader in slow),
        "rss_growth_bytes": measured["rss_growth_bytes"],
        "web_cpu_share": measured["web_cpu_share"],
    }
    held = result["p99_ms"] <= TARGET_P99_MS and result["lost"] == result["doubled"] == result["not_arrived"] == 0
    return {**result, "ok": held and result["rss_growth_bytes"] <= TARGET_GROWTH_BYTES}


def percentile_ms(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return 1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def make_rollouts(count: int) -> list[Rollout]:
    taskset = TaskSet.objects.create(name="bench", source="generated:bench", digest="0", directory="/nowhere")
    task = Task.objects.create(
        taskset=taskset,
        name="bench",
        directory="/nowhere",
        instruction="-",
        digest="0",
        agent_timeout_s=60,
        verifier_timeout_s=60,
    )
    model = Model.objects.create(name="bench", path="/nowhere", renderer="scripted", context_length=100_000)
    harness = Harness.objects.create(name="bench", program="mini-swe-agent", version="0")
    state = Rollout.State.RUNNING
    return [
        Rollout.objects.create(task=task, model=model, harness=harness, pool="bench", state=state) for _ in range(count)
    ]


def sign_in() -> str:
    """The session key of a viewer."""
    user = User.objects.create(username="bench", role=User.Role.VIEWER)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)
