"""Reads the live logs that this process's sockets follow: once a tick, those with news, all in one round trip.

From:  the doorbells of all followed rollouts, on one channel of the channel layer; a timer, because bells may be lost.
To:    Follower.offer, with what comes after its position.
Holds: a log that several sockets follow from the same place is read once; nothing is read for a socket that has not
       acknowledged its last frame, so a slow reader costs nothing here.
Never: waits for a socket, keeps entries.
"""

import asyncio
import logging
import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from environments import live

TICK_S = 0.05
REREAD_S = 2.0
PAGE_ENTRIES = 500

logger = logging.getLogger(__name__)


class Follower(Protocol):
    after: tuple[int, int] | None

    @property
    def rollout_id(self) -> UUID: ...

    @property
    def wants(self) -> bool:
        """Its last frame was acknowledged."""

    def offer(self, page: live.RawPage) -> None: ...

    def fail(self, error: Exception) -> None: ...


@dataclass(eq=False, kw_only=True)
class Hub:
    followers: dict[UUID, set[Follower]] = field(default_factory=dict)
    _rung: set[UUID] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _membership: asyncio.Lock = field(default_factory=asyncio.Lock)
    _channel: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def join(self, follower: Follower) -> None:
        async with self._membership:
            if not self.followers:
                await self._start()
            followers = self.followers.setdefault(follower.rollout_id, set())
            followers.add(follower)
            if len(followers) == 1:
                await layer().group_add(group(follower.rollout_id), self._channel)
        self.ring(follower.rollout_id)

    async def leave(self, follower: Follower) -> None:
        async with self._membership:
            followers = self.followers.get(follower.rollout_id, set())
            followers.discard(follower)
            if not followers and self.followers.pop(follower.rollout_id, None) is not None:
                await layer().group_discard(group(follower.rollout_id), self._channel)
            if not self.followers:
                await self._stop()

    def ring(self, rollout_id: UUID) -> None:
        """There may be news in this log."""
        self._rung.add(rollout_id)
        self._wake.set()

    async def _start(self) -> None:
        await self._stop()
        self._channel = await layer().new_channel()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._follow())]

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            message = await layer().receive(self._channel)
            self.ring(UUID(message["rollout"]))

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        reread_at = loop.time() + REREAD_S
        while True:
            try:
                async with asyncio.timeout_at(reread_at):
                    await self._wake.wait()
            except TimeoutError:
                self._rung.update(self.followers)
                reread_at = loop.time() + REREAD_S
            self._wake.clear()
            rung, self._rung = self._rung, set()
            began = loop.time()
            await self._read([f for one in rung for f in self.followers.get(one, ()) if f.wants])
            await asyncio.sleep(began + TICK_S - loop.time())

    async def _read(self, waiting: list[Follower]) -> None:
        places = list(dict.fromkeys((follower.rollout_id, follower.after) for follower in waiting))
        try:
            pages = dict(zip(places, await live.read_many(places, PAGE_ENTRIES), strict=True))
        except (RedisError, OSError, ValueError) as error:
            logger.warning("live logs cannot be read: %s", error)
            for follower in waiting:
                follower.fail(error)
            return
        for follower in waiting:
            follower.offer(pages[follower.rollout_id, follower.after])


def group(rollout_id: UUID) -> str:
    return f"rollout.{rollout_id.hex}"


def layer() -> Any:
    return get_channel_layer()


_hubs: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub]" = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """Of this event loop: a web process has one."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
