"""One subscription of one socket: follows a live log and sends it in few, small, acknowledged frames.

From:  gyre_web.watch.hub, which reads the log; of an attempt, its bell.
To:    the socket, through `send`, which waits while the connection is full.
Holds: entries in order, each once; at most one frame a tick of the hub; never a second frame before the first was
       acknowledged; so memory is one page whatever the reader does.
Never: reads the log itself, decides on rights (gyre_web.watch.consumers does).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from environments import live
from gyre_web.watch.hub import PAGE_ENTRIES, hub
from gyre_web.watch.protocol import Changed, Events, Message, Position, Reset, Stream, Subscribed

FRAME_BYTES = 256 * 1024
SLOW_ENTRIES = 5000
"""A reader that took longer than SLOW_S for a frame and is this far behind jumps instead of paging."""
SLOW_S = 3.0
ACK_TIMEOUT_S = 60.0

Send = Callable[[Message], Awaitable[None]]


class TooSlow(Exception):
    """No acknowledgement for ACK_TIMEOUT_S: the socket is closed with 4008."""


@dataclass(eq=False, kw_only=True)
class Subscription:
    stream: Stream
    send: Send
    after: Position | None
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: Position | None = None
    page: asyncio.Future[live.RawPage] | None = None
    """What it waits for from the hub."""

    @property
    def rollout_id(self) -> UUID:
        return self.stream.id

    @property
    def wants(self) -> bool:
        return self.page is not None and not self.page.done()

    def offer(self, page: live.RawPage) -> None:
        if self.page is not None and self.wants and (page.entries or page.reset):
            self.page.set_result(page)

    def fail(self, error: Exception) -> None:
        if self.page is not None and self.wants:
            self.page.set_exception(error)

    def ring(self) -> None:
        self.bell.set()

    def ack(self, position: Position | None) -> None:
        """Acknowledges the frame in flight; a position before its end is of an older frame and is ignored."""
        if self.in_flight is not None and position is not None and position >= self.in_flight:
            self.in_flight = None
            self.acked.set()

    async def follow(self) -> None:
        """Runs until cancelled, or returns after a `Reset`. Of an attempt, the doorbell group was joined before."""
        if self.stream.kind == "attempt":
            await self._follow_bell()
        else:
            await self._follow_log()

    async def _follow_bell(self) -> None:
        await self.send(Subscribed(op="subscribed", stream=str(self.stream), head=None))
        while True:
            await self.bell.wait()
            self.bell.clear()
            await self.send(Changed(op="changed", stream=str(self.stream)))
            await asyncio.sleep(0.5)

    async def _follow_log(self) -> None:
        head = await live.head(self.stream.id)
        await self.send(Subscribed(op="subscribed", stream=str(self.stream), head=list(head) if head else None))
        await hub().join(self)
        try:
            await self._send_pages()
        finally:
            await hub().leave(self)

    async def _send_pages(self) -> None:
        waited_s = 0.0
        while True:
            self.page = asyncio.get_running_loop().create_future()
            hub().ring(self.rollout_id)  # a bell that rang while a frame was in flight was not for it
            page = await self.page
            lag = await self._lag() if len(page.entries) >= PAGE_ENTRIES else 0
            if page.reset or (waited_s > SLOW_S and lag > SLOW_ENTRIES):
                reason = Reset(op="reset", stream=str(self.stream), reason="trimmed" if page.reset else "slow", lag=lag)
                await self.send(reason)
                return
            started = time.monotonic()
            await self._send_entries(page.entries, lag)
            waited_s = time.monotonic() - started

    async def _send_entries(self, entries: list[live.RawEntry], lag: int) -> None:
        """Sends a page as frames of one epoch and at most FRAME_BYTES; returns once the last is acknowledged."""
        for start, end in frame_bounds(entries):
            part = entries[start:end]
            frame = Events(
                op="events",
                stream=str(self.stream),
                epoch=part[0].epoch,
                entries=[(entry.n, entry.kind, orjson.Fragment(entry.raw)) for entry in part],
                lag=lag + len(entries) - end,
            )
            self.in_flight = (part[-1].epoch, part[-1].n)
            self.acked.clear()
            await self.send(frame)
            try:
                await asyncio.wait_for(self.acked.wait(), ACK_TIMEOUT_S)
            except TimeoutError as error:
                raise TooSlow from error
            self.after = (part[-1].epoch, part[-1].n)

    async def _lag(self) -> int:
        """Entries between what was sent and the log's head; 0 when the epochs differ (then a reset follows)."""
        head = await live.head(self.stream.id)
        if head is None:
            return 0
        after = self.after or (head[0], 0)
        return max(0, head[1] - after[1] - PAGE_ENTRIES) if head[0] == after[0] else 0


def frame_bounds(entries: list[live.RawEntry]) -> list[tuple[int, int]]:
    """Cuts a page where the epoch changes and where a frame would pass FRAME_BYTES (one entry always fits)."""
    bounds: list[tuple[int, int]] = []
    start = size = 0
    for index, entry in enumerate(entries):
        entry_bytes = len(entry.raw)
        if index > start and (entry.epoch != entries[start].epoch or size + entry_bytes > FRAME_BYTES):
            bounds.append((start, index))
            start, size = index, 0
        size += entry_bytes
    if entries:
        bounds.append((start, len(entries)))
    return bounds
