"""Which engine answers a call: sticky, then least loaded; and waiting while none can.

From:  Engine rows, polled by one task a gateway (training writes them); what generation.py hears of the engines; probes.
To:    the engine to ask, for generation.py.
Holds: a rollout stays with one engine while that engine serves; no call fails because no engine serves. An engine that
       failed OUT_AFTER times in a row gets no call until it answers a probe; one that is silent in mid-call is probed,
       and left when it does not answer: a slow engine answers, a hung one does not.
Never: changes an Engine row.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

import psycopg

from environments.gateway.http_client import Address, HttpClient
from environments.gateway.record import EngineRow, Record
from environments.gateway.signal import Signal

POLL_S = 0.2
SUSPECT_S = 1.0
"""An engine that just failed is asked again only after this long, unless it is the only one."""
OUT_AFTER = 3
PROBE_S = 1.0
PROBE_TIMEOUT_S = 2.0
QUIET_S = 20.0
"""A call without a token for this long lets its engine be probed."""
HOLDING_PATIENCE_S = 5.0
"""How long a rollout waits for its own engine's weight change before it moves to one that serves."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Hold:
    reason: str


class Routing:
    def __init__(self, record: Record, client: HttpClient) -> None:
        self.record, self.client = record, client
        self.engines: dict[UUID, EngineRow] = {}
        self.changed = Signal()
        self._sticky: dict[UUID, UUID] = {}
        self._in_flight: Counter[UUID] = Counter()
        self._suspects: dict[UUID, float] = {}
        self._failures: Counter[UUID] = Counter()
        """In a row, of each engine."""
        self._heard: dict[UUID, float] = {}
        self._probed: dict[UUID, float] = {}
        self._probes: set[asyncio.Task[None]] = set()
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
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)

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
            self._start_probes()

    def _start_probes(self) -> None:
        now = asyncio.get_running_loop().time()
        for engine in self.engines.values():
            is_quiet = self._in_flight[engine.id] > 0 and now - self._heard.get(engine.id, now) > QUIET_S
            if not (is_quiet or self.is_out(engine.id)) or not engine.base_url.startswith(("http://", "unix://")):
                continue
            if now - self._probed.get(engine.id, -PROBE_S) >= PROBE_S:
                self._probed[engine.id] = now
                probe = asyncio.create_task(self._probe(engine))
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)

    async def _probe(self, engine: EngineRow) -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                address = Address.from_url(engine.base_url)
                async with await self.client.request(address, method="GET", path="/health", headers={}) as response:
                    await response.read()
                    is_well = response.status == 200
        except (OSError, TimeoutError):
            is_well = False
        if is_well:
            self.heard(engine.id)
            return
        self._failures[engine.id] += 1
        if self._failures[engine.id] == OUT_AFTER:
            logger.warning("An engine does not answer; its calls go on elsewhere", extra={"engine": str(engine.id)})
        if self.is_out(engine.id):
            expire(self._watching.get(engine.id, ()))

    def is_out(self, engine_id: UUID) -> bool:
        return self._failures[engine_id] >= OUT_AFTER

    def heard(self, engine_id: UUID) -> None:
        """It answered: a token, or a probe."""
        self._heard[engine_id] = asyncio.get_running_loop().time()
        if self._failures[engine_id]:
            was_out = self.is_out(engine_id)
            self._failures[engine_id] = 0
            if was_out:
                self._suspects.pop(engine_id, None)
                self.changed.fire()

    def choose(self, *, rollout_id: UUID, pool: str) -> EngineRow | Hold:
        """The engine to ask now, or why to wait."""
        now = asyncio.get_running_loop().time()
        known = [engine for engine in self.engines.values() if engine.pool == pool]
        serving = [engine for engine in known if engine.state == "serving"]
        fresh = [e for e in serving if self._suspects.get(e.id, 0.0) <= now and not self.is_out(e.id)]
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
        if self._in_flight[engine_id] == 1:
            self._heard[engine_id] = asyncio.get_running_loop().time()

    def end(self, engine_id: UUID) -> None:
        self._in_flight[engine_id] -= 1

    def suspect(self, engine_id: UUID) -> None:
        """It failed in a call."""
        self._failures[engine_id] += 1
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
                expire(scopes)

    def version_of(self, engine_id: UUID, otherwise: int) -> int:
        engine = self.engines.get(engine_id)
        return engine.version if engine else otherwise

    def forget(self, rollout_id: UUID) -> None:
        self._sticky.pop(rollout_id, None)
        self._holding_since.pop(rollout_id, None)


def expire(scopes: Iterable[asyncio.Timeout]) -> None:
    for scope in scopes:
        if scope.when() is None:
            scope.reschedule(asyncio.get_running_loop().time())
