"""The ordered live log of a rollout: what happens to it, as it happens, readable by anyone from any point.

From:  the gateway and rollout workers append; websockets and recovering gateways read.
To:    one Valkey stream a rollout, `gyre:live:<uuid>`, and a bell on the channel layer for each append.
Holds: ids are `<epoch>-<n>`, n dense from 1; one append is atomic; a lost log begins again with a higher epoch.
Never: is the truth. That is Postgres; a reader that sees `reset` loads it from there.
Cost:  appends that wait together travel in one script call.

Worked example: append(r, [("state", {...}), ("node", {...})]) on an empty log at epoch 1764586000000 gives entries
1764586000000-1 and 1764586000000-2; read(r, (1764586000000, 1)) gives the second, reset False.
"""

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import redis.asyncio
from channels.layers import get_channel_layer
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import NoScriptError, RedisError

from environments.text import dump_json

MAX_ENTRIES = 50_000
EXPIRES_AFTER_END_S = 3600
EXPIRES_UNENDED_S = 14 * 24 * 3600
"""A log whose rollout never said that it ended does not stay for ever."""
BELL_INTERVAL_S = 0.04
MIN_INTERVAL_S = 0.003
"""Between two script calls: at a high rate appends gather, the first after a pause goes at once."""
SYNC_TIMEOUT_S = 10.0

# ARGV: now, number of bells, (channel, message)*, then for each key: number of events, (kind, data)*.
APPEND = (
    """
local now, at = ARGV[1], 3
for _ = 1, tonumber(ARGV[2]) do
  redis.call('PUBLISH', ARGV[at], ARGV[at + 1])
  at = at + 2
end
for _, key in ipairs(KEYS) do
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
  local epoch, n = now, 0
  if #last > 0 then
    local dash = string.find(last[1][1], '-', 1, true)
    epoch = string.sub(last[1][1], 1, dash - 1)
    n = tonumber(string.sub(last[1][1], dash + 1))
  end
  local ended = false
  local count = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, count do
    local kind, data = ARGV[at], ARGV[at + 1]
    at = at + 2
    n = n + 1
    redis.call('XADD', key, 'MAXLEN', '~', MAX_ENTRIES, epoch .. '-' .. n, 'k', kind, 'd', data)
    if kind == 'state' and string.find(data, '"state":"ended"', 1, true) then ended = true end
  end
  if ended then redis.call('EXPIRE', key, AFTER_END_S)
  elseif #last == 0 then redis.call('EXPIRE', key, UNENDED_S) end
end
return 0
""".replace("MAX_ENTRIES", str(MAX_ENTRIES))
    .replace("UNENDED_S", str(EXPIRES_UNENDED_S))
    .replace("AFTER_END_S", str(EXPIRES_AFTER_END_S))
)

logger = logging.getLogger(__name__)
Event = tuple[str, dict[str, Any]]
Position = tuple[int, int]
"""(epoch, n) of an entry."""
Done = Callable[[RedisError | None], None]
"""Called in the writer's own step: short, and it does not raise."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    epoch: int
    n: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    entries: list[Entry]
    reset: bool
    """`after` is older than the log, or of another epoch, or the log is gone: reload from Postgres, then go on from
    the last entry here (from None where there is none)."""


@dataclass(frozen=True, slots=True)
class RawEntry:
    """An entry whose data is not read: it goes out as it came."""

    epoch: int
    n: int
    kind: str
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class RawPage:
    entries: list[RawEntry]
    reset: bool
    """As in Page."""


async def append(rollout_id: UUID, events: Sequence[Event]) -> None:
    """Returns when the log has them. Raises RedisError when it cannot take them."""
    if events:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        append_soon(rollout_id, events, lambda error: _settle(taken, error))
        await taken


def append_soon(rollout_id: UUID, events: Sequence[Event], done: Done) -> None:
    """Queue them now, in the order of the calls; `done` is called once, when the log has them or cannot take them."""
    _writer().append(rollout_id, events, done)


def tell(rollout_id: UUID, events: Sequence[Event]) -> None:
    """Queue them now; a log that cannot take them is only warned of (readers catch up from Postgres)."""
    if events:
        append_soon(rollout_id, events, _warn)


def append_sync(rollout_id: UUID, events: Sequence[Event]) -> None:
    """For threads without an event loop."""
    if events:
        _run_in_background(append(rollout_id, events))


def ring_attempt_sync(attempt_id: UUID) -> None:
    """Tell the pages of a run's attempt that something in it changed."""
    message = {"type": "doorbell", "attempt": str(attempt_id)}
    _run_in_background(_group_send(f"attempt.{attempt_id.hex}", message))


async def read(rollout_id: UUID, after: Position | None, limit: int = 500) -> Page:
    page = (await _check_many([(rollout_id, after)], limit))[0]
    entries = [Entry(epoch=e.epoch, n=e.n, kind=e.kind, data=orjson.loads(e.raw)) for e in page.entries]
    return Page(entries=entries, reset=page.reset)


async def read_many(places: Sequence[tuple[UUID, Position | None]], limit: int) -> list[RawPage]:
    """What comes after each place, in one round trip; a second one for those whose log ends there, or has a gap."""
    if not places:
        return []
    async with _client().pipeline(transaction=False) as pipeline:
        for rollout_id, after in places:
            pipeline.xrange(_key(rollout_id), _min(after), "+", count=limit)
        found = await pipeline.execute()
    pages = [RawPage(entries=_raw_entries(rows), reset=False) for rows in found]
    doubtful = [i for i, page in enumerate(pages) if not _goes_on(places[i][1], page.entries)]
    if doubtful:
        checked = await _check_many([places[i] for i in doubtful], limit)
        for i, page in zip(doubtful, checked, strict=True):
            pages[i] = page
    return pages


def _goes_on(after: Position | None, entries: list[RawEntry]) -> bool:
    if not entries:
        return False
    first = entries[0]
    return first.n == 1 if after is None else (first.epoch, first.n) == (after[0], after[1] + 1)


async def _check_many(places: Sequence[tuple[UUID, Position | None]], limit: int) -> list[RawPage]:
    """The same, with a look at both ends of each log."""
    client = _client()
    async with client.pipeline(transaction=True) as pipeline:
        for rollout_id, after in places:
            pipeline.xrange(_key(rollout_id), "-", "+", count=1)
            pipeline.xrange(_key(rollout_id), _min(after), "+", count=limit)
            pipeline.xrevrange(_key(rollout_id), "+", "-", count=1)
        found = await pipeline.execute()
    pages = []
    for (rollout_id, after), first, rows, last in zip(places, found[::3], found[1::3], found[2::3], strict=True):
        if not first:
            pages.append(RawPage(entries=[], reset=after is not None))
            continue
        first_id, last_id = _parse_id(first[0][0]), _parse_id(last[0][0])
        wanted = (first_id[0], 0) if after is None else after
        if wanted[0] == first_id[0] and first_id[1] - 1 <= wanted[1] <= last_id[1]:
            pages.append(RawPage(entries=_raw_entries(rows), reset=False))
        else:
            rows = await client.xrange(_key(rollout_id), "-", "+", count=limit)
            pages.append(RawPage(entries=_raw_entries(rows), reset=True))
    return pages


async def head(rollout_id: UUID) -> Position | None:
    """(epoch, n) of the last entry; None where there is no log."""
    rows = await _client().xrevrange(_key(rollout_id), "+", "-", count=1)
    return _parse_id(rows[0][0]) if rows else None


def _key(rollout_id: UUID) -> str:
    return f"gyre:live:{rollout_id}"


def _parse_id(raw: Any) -> tuple[int, int]:
    epoch, _, n = raw.partition(b"-")
    return int(epoch), int(n)


def _min(after: Position | None) -> str:
    return "-" if after is None else f"({after[0]}-{after[1]}"


def _raw_entries(rows: Any) -> list[RawEntry]:
    return [RawEntry(*_parse_id(row_id), fields[b"k"].decode(), fields[b"d"]) for row_id, fields in rows]


@dataclass(eq=False)
class _Writer:
    """Appends of one event loop. All that wait while one script call is under way travel in the next."""

    client: redis.asyncio.Redis
    waiting: dict[UUID, tuple[list[bytes | str], list[Done]]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    digest: str = ""
    rung: dict[UUID, float] = field(default_factory=dict)
    trailing: set[UUID] = field(default_factory=set)
    sent: float = 0.0
    late: set[UUID] = field(default_factory=set)
    """Whose bell rings with the next script call, even if nothing is appended."""

    def append(self, rollout_id: UUID, events: Sequence[Event], done: Done) -> None:
        waiting = self.waiting.get(rollout_id)
        if waiting is None:
            waiting = self.waiting[rollout_id] = ([], [])
        for kind, data in events:
            waiting[0].extend((kind, dump_json(data)))
        waiting[1].append(done)
        self._start()

    def _start(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self.waiting or self.late:
            pause_s = self.sent + MIN_INTERVAL_S - loop.time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            self.sent = loop.time()
            batch, self.waiting = self.waiting, {}
            late, self.late = self.late, set()
            bells = late | {rollout_id for rollout_id in batch if self._is_bell_due(rollout_id)}
            error = await self._send({rollout_id: arguments for rollout_id, (arguments, _) in batch.items()}, bells)
            for _, dones in batch.values():
                for done in dones:
                    done(error)

    async def _send(self, batch: dict[UUID, list[bytes | str]], bells: set[UUID]) -> RedisError | None:
        """All in one script call: at 6,400 tokens a second a command for each would cost half a core."""
        arguments: list[bytes | str | int] = [int(time.time() * 1000), len(bells)]
        for rollout_id in bells:
            arguments += _bell(rollout_id)
        for events in batch.values():
            arguments += (len(events) // 2, *events)
        keys = [_key(rollout_id) for rollout_id in batch]
        try:
            try:
                self.digest = self.digest or await self.client.script_load(APPEND)
                await self.client.evalsha(self.digest, len(keys), *keys, *arguments)
            except NoScriptError:
                self.digest = await self.client.script_load(APPEND)
                await self.client.evalsha(self.digest, len(keys), *keys, *arguments)
        except RedisError as error:
            self.digest = ""
            return error
        return None

    def _is_bell_due(self, rollout_id: UUID) -> bool:
        """At once, and once more at the end of the interval when there was more in it."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait_s = self.rung.get(rollout_id, 0.0) + BELL_INTERVAL_S - now
        if wait_s > 0:
            if rollout_id not in self.trailing:
                self.trailing.add(rollout_id)
                loop.call_later(wait_s, self._ring_late, rollout_id)
            return False
        if len(self.rung) > 10_000:
            self.rung = {key: at for key, at in self.rung.items() if at > now - 1}
        self.rung[rollout_id] = now
        return True

    def _ring_late(self, rollout_id: UUID) -> None:
        self.trailing.discard(rollout_id)
        self.rung[rollout_id] = asyncio.get_running_loop().time()
        self.late.add(rollout_id)
        self._start()


def _bell(rollout_id: UUID) -> tuple[str, bytes]:
    """What `group_send` of the pub/sub channel layer publishes: so the bells travel with the appends (a `group_send`
    of its own for each costs 0.2 ms, at 25 a second and rollout)."""
    layer = get_channel_layer()
    if not isinstance(layer, RedisPubSubChannelLayer):
        raise ImproperlyConfigured("CHANNEL_LAYERS must be channels_redis.pubsub.RedisPubSubChannelLayer.")
    message = {"type": "doorbell", "rollout": str(rollout_id)}
    return layer._get_group_channel_name(f"rollout.{rollout_id.hex}"), layer.serialize(message)


def _settle(taken: "asyncio.Future[None]", error: RedisError | None) -> None:
    if taken.done():
        return
    if error:
        taken.set_exception(error)
    else:
        taken.set_result(None)


def _warn(error: RedisError | None) -> None:
    if error:
        logger.warning("The live log did not take an event", extra={"error": str(error)})


async def _group_send(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        await layer.group_send(group, message)
    except (RedisError, OSError) as error:
        logger.warning("A bell was not rung; readers see the change at their next poll", extra={"error": str(error)})


_clients: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis]" = weakref.WeakKeyDictionary()
_writers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Writer]" = weakref.WeakKeyDictionary()


def _client() -> redis.asyncio.Redis:
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = redis.asyncio.Redis.from_url(settings.REDIS_URL)
    return _clients[loop]


def _writer() -> _Writer:
    loop = asyncio.get_running_loop()
    if loop not in _writers:
        _writers[loop] = _Writer(client=_client())
    return _writers[loop]


_background: tuple[int, asyncio.AbstractEventLoop] | None = None
_background_lock = threading.Lock()


def _run_in_background(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it on this process's one background loop (channel layers keep connections per loop)."""
    global _background
    with _background_lock:
        if _background is None or _background[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="gyre-live", daemon=True).start()
            _background = (os.getpid(), loop)
    asyncio.run_coroutine_threadsafe(coroutine, _background[1]).result(SYNC_TIMEOUT_S)
