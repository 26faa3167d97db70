"""What the gateway costs: added latency of streams, and CPU a call, against the engine directly and against peers.

From:  `manage.py bench gateway`.
To:    keys of docs: added_p50_ms, added_p99_ms, calls_per_cpu_s, peers.
Holds: real processes: gateway, engine stand-in, durable Postgres, Valkey; each its own, the load in this one. A
       gateway's figure includes rendering, tree, record and live log. A core is CPU seconds of the gateway process.
Never: installs a peer into the product's environment; one that is not installed is said to be skipped.

(a) 64 sessions, an engine that streams 100 tokens in 1 s, prompts of 1k tokens that grow by turns. Added: a call's own
    time less the median of the engine asked directly in the same run.
(b) an instant engine, 1k-token prompts, 100-token answers, whole, saturated; and the same streamed token by token.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from django.utils import timezone

from environments.gateway.http_client import Address, HttpClient
from environments.models import Call, Engine, Harness, Model, Node, Rollout, Session, Task, TaskSet
from gyre_web.bench import _peers
from gyre_web.bench._stage import Stage, cpu_s, stage

PROMPT_CHARS = 1000
"""The scripted renderer's tokens are bytes."""
ANSWER_TOKENS = 100
STREAMS = 64
SATURATING = 32
TARGET_P50_MS, TARGET_P99_MS = 5.0, 25.0
ANCHORS = {"litellm": 80.0, "rllm-model-gateway": 289.0}
"""Calls per CPU second seen on the machine of the design, used where a peer is not installed."""
FACTORS = {"litellm": 5.0, "rllm-model-gateway": 2.0}


@dataclass(kw_only=True)
class Timing:
    first_token_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)


def run(quick: bool) -> dict[str, Any]:
    turns = 3 if quick else 8
    num_calls = 1500 if quick else 6000
    with stage() as made:
        prepare_rows(made)
        streaming = measure_streams(made, turns=turns)
        saturated = measure_saturated(made, num_calls=num_calls, stream=False)
        streamed = measure_saturated(made, num_calls=num_calls // 4, stream=True)
    peers = _peers.measure(quick=quick)
    result = {
        "name": "gateway",
        "added_p50_ms": max(streaming["first_added_p50_ms"], streaming["call_added_p50_ms"]),
        "added_p99_ms": max(streaming["first_added_p99_ms"], streaming["call_added_p99_ms"]),
        "calls_per_cpu_s": saturated["calls_per_cpu_s"],
        "peers": {name: value for name, value in peers.items() if isinstance(value, float)},
        "peers_skipped": {name: value for name, value in peers.items() if isinstance(value, str)},
        "streams": streaming,
        "saturated": saturated,
        "streamed": streamed,
        "quick": quick,
    }
    return result | {"compared_with": compared_with(result), "ok": is_ok(result)}


def compared_with(result: dict[str, Any]) -> dict[str, float]:
    """Calls per CPU second of each peer: measured in this run, else the documented anchor."""
    return ANCHORS | result["peers"]


def is_ok(result: dict[str, Any]) -> bool:
    rates = compared_with(result)
    return (
        result["added_p50_ms"] <= TARGET_P50_MS
        and result["added_p99_ms"] <= TARGET_P99_MS
        and all(result["calls_per_cpu_s"] >= FACTORS[name] * rates[name] for name in FACTORS)
    )


def prepare_rows(made: Stage) -> None:
    model = Model.objects.create(name="bench", path="", renderer="scripted", context_length=1_000_000)
    taskset = TaskSet.objects.create(name="bench", source="generated:bench", digest="0", directory="/nowhere")
    task = Task.objects.create(
        taskset=taskset, name="bench", directory="/nowhere", instruction="bench", digest="0", agent_timeout_s=60.0,
        verifier_timeout_s=60.0,
    )  # fmt: skip
    harness = Harness.objects.create(name="bench", program="command", version="1", delivery="stream")
    for pool in ("paced", "instant", "tokenwise"):
        Engine.objects.create(
            pool=pool, name=pool, base_url=f"unix://{engine_socket(made, pool)}", model_name="scripted", state="serving",
            heartbeat_at=timezone.now(),
        )  # fmt: skip
        for _ in range(STREAMS):
            rollout = Rollout.objects.create(
                task=task, model=model, harness=harness, pool=pool, state="running",
                sampling={"max_tokens": ANSWER_TOKENS},
                budgets={"max_calls": 10**6, "max_sampled_tokens": 10**9, "max_context_tokens": 10**6},
            )  # fmt: skip
            Session.objects.create(rollout=rollout)


def engine_socket(made: Stage, pool: str) -> Path:
    return made.directory / f"{pool}.sock"


def start_engine(made: Stage, pool: str, *, tokens_per_s: float, tokens_per_chunk: int) -> Any:
    socket = engine_socket(made, pool)
    return made.start(
        ["-m", "environments.scripted.engine", "--socket", str(socket), "--answer", "a" * (ANSWER_TOKENS - 1),
         "--tokens-per-s", str(tokens_per_s), "--tokens-per-chunk", str(tokens_per_chunk)],
        ready=socket,
    )  # fmt: skip


def start_gateway(made: Stage) -> Any:
    return made.start(["-m", "environments.gateway"], ready=gateway_socket(made))


def gateway_socket(made: Stage) -> Path:
    return Path(made.environment["GYRE_RUNTIME"]) / "gateway" / "gateway.sock"


def session_keys(pool: str) -> list[str]:
    return list(Session.objects.filter(rollout__pool=pool).values_list("key", flat=True))


def measure_streams(made: Stage, *, turns: int) -> dict[str, Any]:
    engine = start_engine(made, "paced", tokens_per_s=ANSWER_TOKENS, tokens_per_chunk=1)
    gateway = start_gateway(made)
    keys = session_keys("paced")
    direct = asyncio.run(stream_direct(engine_socket(made, "paced"), turns=turns))
    before = cpu_s(gateway.pid)
    ours = asyncio.run(stream_sessions(gateway_socket(made), keys, turns=turns))
    spent_s = cpu_s(gateway.pid) - before
    for child in (gateway, engine):
        child.terminate()
        child.wait()
    gateway_socket(made).unlink(missing_ok=True)
    figures = {"sessions": len(keys), "calls": len(ours.call_s), "gateway_cpu_s": spent_s}
    for what, mine, base in (
        ("first", ours.first_token_s, direct.first_token_s),
        ("call", ours.call_s, direct.call_s),
    ):
        median = statistics.median(base)
        added = sorted(1000 * (value - median) for value in mine)
        figures |= {
            f"{what}_direct_p50_ms": 1000 * median,
            f"{what}_direct_p99_ms": 1000 * quantile(sorted(base), 0.99),
            f"{what}_added_p50_ms": quantile(added, 0.5),
            f"{what}_added_p99_ms": quantile(added, 0.99),
        }
    return figures


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def stream_direct(socket: Path, *, turns: int) -> Timing:
    timing, client = Timing(), HttpClient()

    async def one(number: int) -> None:
        await asyncio.sleep(number / STREAMS)
        for turn in range(turns):
            ids = [97] * (PROMPT_CHARS + turn * (ANSWER_TOKENS + 40))
            body = {"token_ids": ids, "sampling_params": {"max_tokens": ANSWER_TOKENS, "logprobs": 1}, "stream": True}
            await ask(client, socket, "/inference/v1/generate", orjson.dumps(body), timing)

    await asyncio.gather(*(one(number) for number in range(STREAMS)))
    client.close()
    return timing


async def stream_sessions(socket: Path, keys: list[str], *, turns: int) -> Timing:
    timing, client = Timing(), HttpClient()

    async def one(number: int, key: str) -> None:
        await asyncio.sleep(number / STREAMS)
        messages = [{"role": "user", "content": f"bench {number} ".ljust(PROMPT_CHARS, "x")}]
        for turn in range(turns):
            body = orjson.dumps({"model": "M", "messages": messages, "stream": True})
            await ask(client, socket, f"/s/{key}/v1/chat/completions", body, timing)
            messages += [
                {"role": "assistant", "content": "a" * (ANSWER_TOKENS - 1)},
                {"role": "user", "content": f"turn {turn}".ljust(40)},
            ]

    await asyncio.gather(*(one(number, key) for number, key in enumerate(keys)))
    client.close()
    return timing


async def ask(client: HttpClient, socket: Path, path: str, body: bytes, timing: Timing) -> None:
    began = time.monotonic()
    response = await client.request(
        Address(socket=str(socket)),
        method="POST",
        path=path,
        headers={"content-type": "application/json"},
        body=body,
    )
    async with response:
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {(await response.read())[:500]!r}")
        await response.read_piece()
        timing.first_token_s.append(time.monotonic() - began)
        await response.read()
    timing.call_s.append(time.monotonic() - began)


def measure_saturated(made: Stage, *, num_calls: int, stream: bool) -> dict[str, Any]:
    pool = "tokenwise" if stream else "instant"
    engine = start_engine(made, pool, tokens_per_s=0, tokens_per_chunk=1 if stream else ANSWER_TOKENS)
    gateway = start_gateway(made)
    keys = session_keys(pool)[:SATURATING]
    asyncio.run(saturate(gateway_socket(made), keys, num_calls=4 * SATURATING, stream=stream, mark="warm"))
    before = cpu_s(gateway.pid)
    wall_s = asyncio.run(saturate(gateway_socket(made), keys, num_calls=num_calls, stream=stream, mark="real"))
    spent_s = cpu_s(gateway.pid) - before
    direct_before = cpu_s(engine.pid)
    direct_wall_s = asyncio.run(saturate_direct(engine_socket(made, pool), num_calls=num_calls))
    direct_cpu_s = cpu_s(engine.pid) - direct_before
    for child in (gateway, engine):
        child.terminate()
        child.wait()
    gateway_socket(made).unlink(missing_ok=True)
    recorded = Call.objects.filter(rollout__pool=pool, state="completed").count()
    return {
        "calls": num_calls,
        "calls_per_s": num_calls / wall_s,
        "cpu_ms_a_call": 1000 * spent_s / num_calls,
        "calls_per_cpu_s": num_calls / spent_s,
        "direct_calls_per_s": num_calls / direct_wall_s,
        "direct_engine_cpu_ms_a_call": 1000 * direct_cpu_s / num_calls,
        "recorded_calls": recorded,
        "recorded_nodes": Node.objects.filter(rollout__pool=pool, sampled=True).count(),
        "all_recorded": recorded == num_calls + 4 * SATURATING,
    }


async def saturate(socket: Path, keys: list[str], *, num_calls: int, stream: bool, mark: str) -> float:
    client, timing = HttpClient(), Timing()
    numbers = iter(range(num_calls))

    async def one(key: str) -> None:
        for number in numbers:
            messages = [
                {"role": "system", "content": "s" * (PROMPT_CHARS // 2)},
                {"role": "user", "content": f"{mark} {number} ".ljust(PROMPT_CHARS // 2, "x")},
            ]
            body = orjson.dumps({"model": "M", "messages": messages, "stream": stream})
            await ask(client, socket, f"/s/{key}/v1/chat/completions", body, timing)

    began = time.monotonic()
    await asyncio.gather(*(one(key) for key in keys))
    client.close()
    return time.monotonic() - began


async def saturate_direct(socket: Path, *, num_calls: int) -> float:
    client, timing = HttpClient(), Timing()
    numbers = iter(range(num_calls))
    body = orjson.dumps(
        {"token_ids": [97] * PROMPT_CHARS, "sampling_params": {"max_tokens": ANSWER_TOKENS}, "stream": True}
    )

    async def one() -> None:
        for _ in numbers:
            await ask(client, socket, "/inference/v1/generate", body, timing)

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(SATURATING)))
    client.close()
    return time.monotonic() - began
