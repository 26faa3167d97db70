"""Which engine answers a call: sticky, then least loaded; and waiting while none can.

From:  Engine rows, polled by one task a gateway (training writes them).
To:    EngineView for generation.py.
Holds: a rollout stays with one engine while that engine serves; no call fails because no engine serves.
Never: changes an Engine row.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import psycopg

from environments.gateway.record import EngineRow, Record
from environments.gateway.signal import Signal

POLL_S = 0.2
SUSPECT_S = 1.0
"""An engine that just failed is asked again only after this long, unless it is the only one."""
HOLDING_PATIENCE_S = 5.0
"""How long a rollout waits for its own engine's weight change before it moves to one that serves."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Hold:
    reason: str


class Routing:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.engines: dict[UUID, EngineRow] = {}
        self.changed = Signal()
        self._sticky: dict[UUID, UUID] = {}
        self._in_flight: Counter[UUID] = Counter()
        self._suspects: dict[UUID, float] = {}
        self._watching: dict[UUID, set[asyncio.Timeout]] = {}
        self._holding_since: dict[UUID, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.refresh()
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        rows = {row.id: row for row in await self.record.load_engines()}
        if rows != self.engines:
            self.engines = rows
            self._expire_watches()
            self.changed.fire()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
            except psycopg.Error as error:
                logger.warning("Engines could not be read; the last known stay", extra={"error": str(error)})

    def choose(self, *, rollout_id: UUID, pool: str) -> EngineRow | Hold:
        """The engine to ask now, or why to wait."""
        now = asyncio.get_running_loop().time()
        known = [engine for engine in self.engines.values() if engine.pool == pool]
        serving = [engine for engine in known if engine.state == "serving"]
        fresh = [engine for engine in serving if self._suspects.get(engine.id, 0.0) <= now]
        sticky = self.engines.get(self._sticky.get(rollout_id, rollout_id))
        if sticky and sticky in fresh:
            return sticky
        if sticky and sticky.state == "holding":
            since = self._holding_since.setdefault(rollout_id, now)
            if now - since < HOLDING_PATIENCE_S or not fresh:
                return Hold(reason="weights change")
        self._holding_since.pop(rollout_id, None)
        if not fresh:
            if serving:
                return Hold(reason="engine unreachable")
            if any(engine.state == "holding" for engine in known):
                return Hold(reason="weights change")
            return Hold(reason="no engine serves")
        best = min(fresh, key=self._cost)
        self._sticky[rollout_id] = best.id
        return best

    def _cost(self, engine: EngineRow) -> tuple[int, int, bool, int, str]:
        """Least loaded; among equals standalone first, then the cell that turns to training last."""
        stuck = sum(1 for chosen in self._sticky.values() if chosen == engine.id)
        return self._in_flight[engine.id], stuck, not engine.standalone, -engine.turn_order, engine.name

    def begin(self, engine_id: UUID) -> None:
        self._in_flight[engine_id] += 1

    def end(self, engine_id: UUID) -> None:
        self._in_flight[engine_id] -= 1

    def suspect(self, engine_id: UUID) -> None:
        self._suspects[engine_id] = asyncio.get_running_loop().time() + SUSPECT_S

    @contextlib.contextmanager
    def watch(self, engine_id: UUID, scope: asyncio.Timeout) -> Iterator[None]:
        """Expire `scope` when the engine stops, fails or leaves while a call is under way there."""
        watching = self._watching.setdefault(engine_id, set())
        watching.add(scope)
        try:
            yield
        finally:
            watching.discard(scope)

    def _expire_watches(self) -> None:
        for engine_id, scopes in self._watching.items():
            engine = self.engines.get(engine_id)
            if engine is None or engine.state not in ("serving", "holding", "draining"):
                for scope in scopes:
                    if scope.when() is None:
                        scope.reschedule(asyncio.get_running_loop().time())

    def version_of(self, engine_id: UUID, otherwise: int) -> int:
        engine = self.engines.get(engine_id)
        return engine.version if engine else otherwise

    def forget(self, rollout_id: UUID) -> None:
        self._sticky.pop(rollout_id, None)
        self._holding_since.pop(rollout_id, None)
