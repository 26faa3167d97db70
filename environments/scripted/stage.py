"""A gateway and scripted engines in a thread of this process, for one harness at a time to be tried on.

From:  environments.harnesses.trial (`manage.py harness check`) and the contract matrix.
To:    `gateway.sock` in settings.GATEWAY_SOCKET_DIR, Engine rows of one pool.
Holds: everything real but the model; the engines' rules may be changed while they serve; `close` leaves nothing.
Never: starts services: Postgres and Valkey are the ones that settings name.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from django.conf import settings

from environments.models import Engine
from environments.scripted.engine import Fault, Rule, ScriptedEngine

START_S = 60.0
ENGINE_SOCKET = "engine.sock"


@dataclass(eq=False, kw_only=True)
class Stage:
    pool: str
    engine: ScriptedEngine
    directory: Path
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def play(self, rule: Rule, *, faults: Mapping[int, Fault] | None = None, tokens_per_s: float = 0.0) -> None:
        """What it says from here on, to the next rollout."""
        self.engine.rule = rule
        self.engine.num_started = 0
        self.engine.faults = faults or {}
        self.engine.tokens_per_s = tokens_per_s
        self.engine.requests.clear()

    def run(self) -> None:
        """Body of the thread."""
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._errors.append(error)
            self._ready.set()
            raise
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        from environments.gateway.__main__ import bind_unix, take_link
        from environments.gateway.app import Gateway

        gateway = Gateway(socket_dir=self.directory)
        servers, tasks = [], []
        for app, name in ((self.engine, ENGINE_SOCKET), (gateway, gateway.socket_name)):
            config = uvicorn.Config(app, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            servers.append(server)
            tasks.append(asyncio.create_task(server.serve(sockets=[bind_unix(self.directory / name)])))
        while not all(server.started for server in servers) and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        take_link(self.directory, gateway.socket_name)
        self._ready.set()
        await self._stopped.wait()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopped.set)

    def wait_ready(self) -> None:
        if not self._ready.wait(START_S) or self._errors:
            raise RuntimeError(f"The gateway did not start: {self._errors}")


@contextlib.contextmanager
def open_stage(*, pool: str = "trial", **engine: Any) -> Iterator[Stage]:
    """engine: fields of ScriptedEngine."""
    directory = Path(settings.GATEWAY_SOCKET_DIR)
    directory.mkdir(parents=True, exist_ok=True)
    stage = Stage(pool=pool, engine=ScriptedEngine(**engine), directory=directory)
    row = Engine.objects.create(
        pool=pool,
        name="scripted",
        base_url=f"unix://{directory}/{ENGINE_SOCKET}",
        model_name="scripted",
        state=Engine.State.SERVING,
    )
    thread = threading.Thread(target=stage.run, name="gyre-stage", daemon=True)
    thread.start()
    try:
        stage.wait_ready()
        yield stage
    finally:
        stage.close()
        thread.join(20.0)
        Engine.objects.filter(pk=row.pk).delete()
