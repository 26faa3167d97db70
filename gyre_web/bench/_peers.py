"""Peers of the gateway, each measured in an environment of its own, with the load of bench (b).

From:  gyre_web.bench.gateway.
To:    calls per CPU second of each peer, or, loudly, why it was skipped.
Holds: the peer forwards each call to a stand-in that answers at once; its CPU is that of its process tree.
Never: imports a peer here or installs one; `<data>/peers` (or GYRE_PEERS) is a venv with requirements/peers.txt.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from django.conf import settings

from environments.gateway.http_client import Address, HttpClient
from gyre_web.bench._stage import cpu_s
from gyre_web.up.processes import stop_process

ANSWER = "a" * 99
CLIENTS = 32
START_S = 90.0
Command = Callable[[Path, Path, int, int], Sequence[str]]


def peers_directory() -> Path:
    return Path(os.environ.get("GYRE_PEERS") or settings.DATA_DIR / "peers")


def litellm_command(venv: Path, directory: Path, port: int, upstream: int) -> list[str]:
    config = directory / "litellm.yaml"
    config.write_text(
        "model_list:\n- model_name: M\n  litellm_params:\n    model: openai/M\n    api_key: x\n"
        f"    api_base: http://127.0.0.1:{upstream}/v1\n"
    )
    return [str(venv / "bin/litellm"), "--config", str(config), "--port", str(port), "--num_workers", "1"]


def rllm_command(venv: Path, directory: Path, port: int, upstream: int) -> list[str]:
    return [
        str(venv / "bin/rllm-model-gateway"), "--port", str(port), "--host", "127.0.0.1",
        "--worker", f"http://127.0.0.1:{upstream}/v1", "--db-path", str(directory / "calls.sqlite"),
    ]  # fmt: skip


PEERS: dict[str, Command] = {"litellm": litellm_command, "rllm-model-gateway": rllm_command}


def measure(*, quick: bool) -> dict[str, float | str]:
    """Peer -> calls per CPU second, or a sentence that begins with `skipped`."""
    venv = peers_directory()
    found: dict[str, float | str] = {}
    for name, command in PEERS.items():
        if not (venv / "bin" / name).exists():
            found[name] = (
                f"skipped: not installed; make {venv} with `python -m venv {venv}` and "
                f"`{venv}/bin/pip install -r requirements/peers.txt`"
            )
            continue
        try:
            found[name] = measure_one(venv, command, num_calls=200 if quick else 1000)
        except (RuntimeError, OSError) as error:
            found[name] = f"skipped: {error}"
    for name, reason in found.items():
        if isinstance(reason, str):
            sys.stderr.write(f"PEER {name} {reason}\n")
    return found


def measure_one(venv: Path, command: Command, *, num_calls: int) -> float:
    directory = Path(tempfile.mkdtemp(prefix="gyre-peer-"))
    upstream, port = free_port(), free_port()
    standin = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "uvicorn",
            "gyre_web.bench._peers:standin",
            "--port",
            str(upstream),
            "--log-level",
            "error",
        ]
    )
    environment = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "PYTHONUNBUFFERED": "1",
    }
    for name in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "REDIS_URL"):
        environment.pop(name, None)
    with (directory / "log").open("wb") as log:
        peer = subprocess.Popen(
            command(venv, directory, port, upstream), env=environment, stdout=log, stderr=log, cwd=directory
        )
    try:
        wait_until_listening(port, peer, directory / "log")
        asyncio.run(load(port, num_calls=2 * CLIENTS))
        before = tree_cpu_s(peer.pid)
        asyncio.run(load(port, num_calls=num_calls))
        return num_calls / max(tree_cpu_s(peer.pid) - before, 0.01)
    finally:
        for process in (peer, standin):
            stop_process(process, signal.SIGTERM, patience_s=5.0)
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_listening(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"it did not start: {log.read_text(errors='replace')[-400:].strip()}")


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its living descendants."""
    total = cpu_s(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = (task / "children").read_text().split()
        total += sum(tree_cpu_s(int(child)) for child in children)
    return total


async def load(port: int, *, num_calls: int) -> None:
    client = HttpClient()
    numbers = iter(range(num_calls))

    async def one() -> None:
        for number in numbers:
            messages = [
                {"role": "system", "content": "s" * 500},
                {"role": "user", "content": f"real {number} ".ljust(500, "x")},
            ]
            response = await client.request(
                Address(host="127.0.0.1", port=port),
                method="POST",
                path="/v1/chat/completions",
                headers={"content-type": "application/json", "authorization": "Bearer x"},
                body=orjson.dumps({"model": "M", "messages": messages}),
            )
            async with response:
                body = await response.read()
                if response.status != 200:
                    raise RuntimeError(f"it answered {response.status}: {body[:200]!r}")

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    client.close()


async def standin(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An OpenAI Chat endpoint that answers 100 tokens at once, with ids and logprobs for whoever records them."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    message = {"role": "assistant", "content": ANSWER}
    content = [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}] * 100
    choice = {
        "index": 0, "message": message, "finish_reason": "stop", "token_ids": [97] * 100,
        "logprobs": {"content": content},
    }  # fmt: skip
    body = orjson.dumps(
        {
            "id": "x", "object": "chat.completion", "created": 0, "model": "M", "choices": [choice],
            "prompt_token_ids": [97] * 1000,
            "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
        }
    )  # fmt: skip
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
