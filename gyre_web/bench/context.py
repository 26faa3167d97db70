"""One rollout that grows to 1M tokens: what a call costs at the end, and what a token costs to keep.

From:  `manage.py bench context`.
To:    added_ms_at_1m, floor_ms_at_1m, bytes_per_token, session_bytes_per_token, ratio_to_render.
Holds: through the whole gateway (a process of its own), with a durable record; a fifth of the tokens is sampled.
       Added is a call's time less that of the engine asked directly with the same ids; the floor is what no gateway can
       avoid: parse the body, hash its messages, write the ids.

A token is a byte here (the scripted renderer); what is compared with rendering is a byte-level BPE of the same text.
"""

import asyncio
import hashlib
import statistics
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
from django.db import connection

from environments.gateway.http_client import HttpClient
from environments.models import Call, Node, Session
from gyre_web.bench._stage import Stage, stage
from gyre_web.bench.gateway import (
    Timing,
    ask,
    engine_socket,
    gateway_socket,
    prepare_rows,
    session_keys,
    start_gateway,
)

FULL_TOKENS = 1_000_000
SAMPLED_SHARE = 0.2
LAST = 5
TARGET_ADDED_MS, TARGET_BYTES, TARGET_RATIO = 100.0, 9.0, 20.0


def run(quick: bool) -> dict[str, Any]:
    num_calls = 100 if quick else 500
    step = FULL_TOKENS // num_calls
    with stage() as made:
        prepare_rows(made)
        key = session_keys("instant")[0]
        result = grow(made, key, num_calls=num_calls, step=step)
        result |= measure_record(key)
    added = max(result["added_ms_at_1m"], 0.001)
    result["ratio_to_render"] = result["render_ms_at_1m"] / added
    result["ok"] = (
        result["added_ms_at_1m"] <= TARGET_ADDED_MS
        and result["bytes_per_token"] <= TARGET_BYTES
        and result["ratio_to_render"] >= TARGET_RATIO
    )
    return {"name": "context", "quick": quick, **result}


def grow(made: Stage, key: str, *, num_calls: int, step: int) -> dict[str, Any]:
    sampled = int(step * SAMPLED_SHARE)
    socket = engine_socket(made, "instant")
    made.start(
        ["-m", "environments.scripted.engine", "--socket", str(socket), "--answer", answer_text(sampled),
         "--tokens-per-chunk", "100"],
        ready=socket,
    )  # fmt: skip
    gateway = start_gateway(made)
    Session.objects.get(key=key)
    set_max_tokens(key, sampled)
    messages: list[dict[str, str]] = [{"role": "system", "content": "bench"}]
    timing = asyncio.run(grow_calls(gateway_socket(made), key, messages, num_calls=num_calls, step=step))
    rss_before, rss_after = timing.pop("rss_first"), resident_bytes(gateway.pid)
    direct_ms = asyncio.run(direct_call_ms(socket, num_calls * step, sampled))
    tokens = num_calls * step
    return {
        "calls": num_calls,
        "tokens": tokens,
        "added_ms_at_1m": statistics.median(timing["call_ms"][-LAST:]) - direct_ms,
        "direct_ms_at_1m": direct_ms,
        "first_calls_ms": statistics.median(timing["call_ms"][:LAST]),
        "floor_ms_at_1m": floor_ms(messages, tokens),
        "render_ms_at_1m": render_ms(messages),
        "session_bytes_per_token": (rss_after - rss_before) / tokens,
        "call_ms": [round(value, 1) for value in timing["call_ms"]],
    }


def answer_text(num_tokens: int) -> str:
    return ("def f(x):\n    return x + 1\n" * (num_tokens // 20 + 1))[: num_tokens - 1]


def set_max_tokens(key: str, sampled: int) -> None:
    rollout = Session.objects.get(key=key).rollout
    rollout.sampling = {"max_tokens": sampled}
    rollout.budgets |= {"max_context_tokens": 2 * FULL_TOKENS}
    rollout.model.context_length = 2 * FULL_TOKENS
    rollout.model.save()
    rollout.save(update_fields=["sampling", "budgets"])


async def grow_calls(
    socket: Path, key: str, messages: list[dict[str, str]], *, num_calls: int, step: int
) -> dict[str, Any]:
    client, timing = HttpClient(), Timing()
    sampled = int(step * SAMPLED_SHARE)
    rss_first = 0
    for number in range(num_calls):
        messages.append({"role": "user", "content": tool_output(number, step - sampled)})
        body = orjson.dumps({"model": "M", "messages": messages})
        await ask(client, socket, f"/s/{key}/v1/chat/completions", body, timing)
        messages.append({"role": "assistant", "content": answer_text(sampled)})
        if number == 0:
            rss_first = resident_bytes(await gateway_pid(socket))
    client.close()
    return {"call_ms": [1000 * value for value in timing.call_s], "rss_first": rss_first}


def tool_output(number: int, length: int) -> str:
    """Lines that do not repeat, from a fixed seed."""
    random = Random(number)
    lines: list[str] = []
    for _ in range(length // 40 + 1):
        lines.append(f"src/{random.randbytes(6).hex()}.py:{random.randrange(900)}: {random.randbytes(12).hex()}\n")
    return "".join(lines)[:length]


async def gateway_pid(socket: Path) -> int:
    return int(socket.readlink().name.split("-")[1])


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) * 1024


async def direct_call_ms(socket: Path, num_tokens: int, sampled: int) -> float:
    """The engine asked with as many ids, without a gateway."""
    client, timing = HttpClient(), Timing()
    params = {"max_tokens": sampled, "logprobs": 1, "detokenize": False}
    ids = np.full(num_tokens, 97, dtype="<u4")
    body = orjson.dumps(
        {"token_ids": ids, "sampling_params": params, "stream": True}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    for _ in range(LAST):
        await ask(client, socket, "/inference/v1/generate", body, timing)
    client.close()
    return 1000 * statistics.median(timing.call_s)


def floor_ms(messages: list[dict[str, str]], num_tokens: int) -> float:
    body = orjson.dumps({"model": "M", "messages": messages})
    ids = np.full(num_tokens, 97, dtype="<u4")
    times = []
    for _ in range(LAST):
        began = time.perf_counter()
        for message in orjson.loads(body)["messages"]:
            hashlib.blake2b(message["content"].encode(), digest_size=20).digest()
        orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def render_ms(messages: list[dict[str, str]]) -> float:
    """Joining all messages and tokenizing them, as a gateway without a tree does at every call."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    trainer = trainers.BpeTrainer(vocab_size=2000, show_progress=False)
    tokenizer.train_from_iterator([text[:200_000]], trainer)
    began = time.perf_counter()
    tokenizer.encode(text)
    return 1000 * (time.perf_counter() - began)


def measure_record(key: str) -> dict[str, Any]:
    """Bytes a token: ids, logprobs and spans as they are, and as Postgres stores them (compressed: the stand-in's ids
    are small); all columns of Node and Call; the tables with their indices."""
    rollout = Session.objects.get(key=key).rollout_id
    with connection.cursor() as cursor:
        cursor.execute(
            "select sum(octet_length(ids)) / 4, sum(octet_length(ids) + coalesce(octet_length(behaviour_logprobs), 0)"
            " + octet_length(version_spans::text)), sum(pg_column_size(ids) + coalesce(pg_column_size(behaviour_logprobs), 0)"
            " + pg_column_size(version_spans)), sum(pg_column_size(n.*)) from environments_node n where rollout_id = %s",
            [rollout],
        )
        tokens, exact, stored, nodes = cursor.fetchone()
        cursor.execute("select sum(pg_column_size(c.*)) from environments_call c where rollout_id = %s", [rollout])
        calls = cursor.fetchone()[0]
        cursor.execute(
            "select pg_total_relation_size('environments_node') + pg_total_relation_size('environments_call')"
        )
        tables = cursor.fetchone()[0]
    return {
        "recorded_tokens": int(tokens),
        "recorded_nodes": Node.objects.filter(rollout=rollout).count(),
        "recorded_calls": Call.objects.filter(rollout=rollout, state="completed").count(),
        "bytes_per_token": float(exact) / float(tokens),
        "stored_bytes_per_token": float(stored) / float(tokens),
        "all_columns_bytes_per_token": float(nodes + calls) / float(tokens),
        "tables_bytes_per_token": float(tables) / float(tokens),
    }
