"""One subscription of one socket: follows a live log and sends it in few, small, acknowledged frames.

From:  environments.live (the ordered log), rung by the channel layer, reread by a timer because bells may be lost.
To:    the socket, through `send`, which waits while the connection is full.
Holds: entries in order, each once; at most MAX_FRAMES_PER_S frames; never a second frame before the first was
       acknowledged; so memory is one page whatever the reader does.
Never: decides on rights (gyre_web.watch.consumers does).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson

from environments import live
from gyre_web.watch.protocol import Changed, Events, Message, Position, Reset, Stream, Subscribed

FRAME_INTERVAL_S = 0.05
REREAD_S = 2.0
PAGE_ENTRIES = 500
FRAME_BYTES = 256 * 1024
SLOW_ENTRIES = 5000
"""A reader that took longer than SLOW_S for a frame and is this far behind jumps instead of paging."""
SLOW_S = 3.0
ACK_TIMEOUT_S = 60.0

Send = Callable[[Message], Awaitable[None]]


class TooSlow(Exception):
    """No acknowledgement for ACK_TIMEOUT_S: the socket is closed with 4008."""


@dataclass(kw_only=True)
class Subscription:
    stream: Stream
    send: Send
    after: Position | None
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: Position | None = None

    def ring(self) -> None:
        self.bell.set()

    def ack(self, position: Position | None) -> None:
        """Acknowledges the frame in flight; a position before its end is of an older frame and is ignored."""
        if self.in_flight is not None and position is not None and position >= self.in_flight:
            self.in_flight = None
            self.acked.set()

    async def follow(self) -> None:
        """Runs until cancelled, or returns after a `Reset`. The doorbell group was joined before."""
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
        waited_s = 0.0
        while True:
            self.bell.clear()
            page = await live.read(self.stream.id, self.after, PAGE_ENTRIES)
            lag = await self._lag() if len(page.entries) >= PAGE_ENTRIES else 0
            if page.reset or (waited_s > SLOW_S and lag > SLOW_ENTRIES):
                reason = Reset(op="reset", stream=str(self.stream), reason="trimmed" if page.reset else "slow", lag=lag)
                await self.send(reason)
                return
            if page.entries:
                started = time.monotonic()
                await self._send_entries(page.entries, lag)
                waited_s = time.monotonic() - started
                await asyncio.sleep(max(0.0, FRAME_INTERVAL_S - waited_s))
            else:
                await self._wait_for_bell()

    async def _send_entries(self, entries: list[live.Entry], lag: int) -> None:
        """Sends a page as frames of one epoch and at most FRAME_BYTES; returns once the last is acknowledged."""
        for start, end in frame_bounds(entries):
            part = entries[start:end]
            frame = Events(
                op="events",
                stream=str(self.stream),
                epoch=part[0].epoch,
                entries=[(entry.n, entry.kind, entry.data) for entry in part],
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

    async def _wait_for_bell(self) -> None:
        try:
            await asyncio.wait_for(self.bell.wait(), REREAD_S)
        except TimeoutError:
            return


def frame_bounds(entries: list[live.Entry]) -> list[tuple[int, int]]:
    """Cuts a page where the epoch changes and where a frame would pass FRAME_BYTES (one entry always fits)."""
    bounds: list[tuple[int, int]] = []
    start = size = 0
    for index, entry in enumerate(entries):
        entry_bytes = len(orjson.dumps(entry.data))
        if index > start and (entry.epoch != entries[start].epoch or size + entry_bytes > FRAME_BYTES):
            bounds.append((start, index))
            start, size = index, 0
        size += entry_bytes
    if entries:
        bounds.append((start, len(entries)))
    return bounds
