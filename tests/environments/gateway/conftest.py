"""A gateway and a scripted engine in this process, and rows for a session."""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from asgiref.sync import sync_to_async
from django.db import connections

from environments.models import Call, Engine, Harness, Model, Node, Rollout, Session, Task, TaskSet
from environments.scripted.engine import ScriptedEngine

INSTRUCTION = "Write ok into out.txt."


def make_session(*, delivery: str = "whole", pool: str = "p", **changes: Any) -> Session:
    model, _ = Model.objects.get_or_create(
        name="scripted", defaults={"path": "", "renderer": "scripted", "context_length": 1_000_000}
    )
    taskset, _ = TaskSet.objects.get_or_create(
        name="t", defaults={"source": "generated:x", "digest": "0", "directory": "/nowhere"}
    )
    task, _ = Task.objects.get_or_create(
        taskset=taskset, name="t",
        defaults={"directory": "/nowhere", "instruction": INSTRUCTION, "digest": "0", "agent_timeout_s": 60.0,
                  "verifier_timeout_s": 60.0},
    )  # fmt: skip
    harness, _ = Harness.objects.get_or_create(
        name=f"h-{delivery}", defaults={"program": "none", "version": "1", "delivery": delivery}
    )
    budgets = {"max_calls": 1000, "max_sampled_tokens": 1_000_000, "max_context_tokens": 1_000_000}
    sampling = {"max_tokens": 4096} | changes.pop("sampling", {})
    rollout = Rollout.objects.create(
        task=task, model=model, harness=harness, pool=pool, state="running", sampling=sampling,
        budgets=budgets | changes.pop("budgets", {}), **changes,
    )  # fmt: skip
    return Session.objects.create(rollout=rollout)


@dataclass
class Served:
    """A uvicorn server of this process on a unix socket."""

    app: Any
    socket: Path
    server: uvicorn.Server | None = None
    task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config = uvicorn.Config(
            self.app,
            uds=str(self.socket),
            lifespan="on",
            log_config=None,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=3600,
        )
        self.server = uvicorn.Server(config)
        self.server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
        self.task = asyncio.create_task(self.server.serve())
        while not self.server.started:
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self.server and self.task:
            self.server.should_exit = True
            await self.task


@dataclass
class World:
    directory: Path
    engine: ScriptedEngine
    gateway: Any
    servers: list[Served] = field(default_factory=list)

    async def serve(self, app: Any, name: str) -> Path:
        served = Served(app, self.directory / name)
        await served.start()
        self.servers.append(served)
        return served.socket

    def client(self, session: Session, **options: Any) -> httpx.AsyncClient:
        return client_for(self.directory / self.gateway.socket_name, session, **options)

    async def session(self, **changes: Any) -> Session:
        return await sync_to_async(make_session)(**changes)

    async def add_engine(self, name: str, **changes: Any) -> tuple[ScriptedEngine, Engine]:
        engine = ScriptedEngine()
        path = await self.serve(engine, f"{name}.sock")
        row = await Engine.objects.acreate(
            **{"pool": "p", "name": name, "base_url": f"unix://{path}", "model_name": "scripted", "state": "serving"}
            | changes
        )
        await self.gateway.routing.refresh()
        return engine, row

    async def set_engine(self, name: str, **changes: Any) -> None:
        await Engine.objects.filter(name=name).aupdate(**changes)
        await self.gateway.routing.refresh()


def client_for(socket: Path, session: Session, **options: Any) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url=f"http://gw/s/{session.key}", **({"timeout": 120} | options))


@pytest.fixture
async def world(transactional_db: None) -> AsyncIterator[World]:
    from environments.gateway.app import Gateway

    directory = Path(tempfile.mkdtemp(prefix="gw-", dir="/tmp"))
    gateway = Gateway(socket_dir=directory)
    made = World(directory=directory, engine=ScriptedEngine(), gateway=gateway)
    path = await made.serve(made.engine, "engine.sock")
    await Engine.objects.acreate(
        pool="p", name="engine", base_url=f"unix://{path}", model_name="scripted", state="serving", version=3
    )
    made.engine.version = "3"
    await made.serve(gateway, gateway.socket_name)
    yield made
    for served in reversed(made.servers):
        await served.stop()
    await sync_to_async(connections.close_all)()
    shutil.rmtree(directory, ignore_errors=True)


def chat(*turns: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """Plain strings alternate user, assistant; a leading "system: ..." is the system message."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if isinstance(turn, dict):
            messages.append(turn)
        elif turn.startswith("system: "):
            messages.append({"role": "system", "content": turn[8:]})
        else:
            last = messages[-1]["role"] if messages else "system"
            messages.append({"role": "assistant" if last == "user" else "user", "content": turn})
    return {"model": "M", "messages": messages} | more


def events(body: str) -> list[Any]:
    """The JSON of each SSE event; [DONE] as that text; comments are skipped."""
    data = [line[6:] for line in body.split("\n") if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def unpack(raw: bytes) -> list[int]:
    return np.frombuffer(bytes(raw), dtype="<u4").tolist()


def branch_ids(rollout_id: Any, index: int | None) -> list[int]:
    nodes = {node.index: node for node in Node.objects.filter(rollout_id=rollout_id)}
    ids: list[int] = []
    while index is not None:
        ids = unpack(nodes[index].ids) + ids
        index = nodes[index].parent
    return ids


def check_identity(rollout_id: Any, engines: list[ScriptedEngine]) -> int:
    """Every answered call's branch is exactly what an engine saw and produced. Returns how many were checked."""
    seen = {tuple(served.prompt + served.produced) for engine in engines for served in engine.requests}
    calls = Call.objects.filter(rollout_id=rollout_id, answer_node__isnull=False)
    for call in calls:
        assert tuple(branch_ids(rollout_id, call.answer_node)) in seen, f"call {call.index}"
    return len(calls)
