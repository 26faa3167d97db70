"""The websocket `/live`: one a browser tab, many subscriptions.

From:  a signed-in browser (session cookie), checked again every RECHECK_S while connected.
To:    gyre_web.watch.subscription, one task a stream.
Holds: a doorbell group is joined before its log is read, so nothing falls between snapshot and bell; rollouts' logs
       are read by one hub a process (gyre_web.watch.hub), whatever the number of sockets;
       a person who signed out, lost the account or the right is cut off with the reason as close code.
Never: blocks the consumer's own loop on a slow reader, keeps more than one frame a stream.
"""

import asyncio
import contextlib
import logging
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.watch.protocol import (
    MAX_SUBSCRIPTIONS,
    Alive,
    CloseCode,
    Closed,
    Message,
    ProtocolError,
    Stream,
    encode,
    parse_position,
    parse_request,
    parse_stream,
)
from gyre_web.watch.subscription import Subscription, TooSlow
from training.models import Attempt

logger = logging.getLogger(__name__)

RECHECK_S = 10.0
ALIVE_S = 15.0
SEND_TIMEOUT_S = 60.0


class LiveConsumer(AsyncWebsocketConsumer):
    """See gyre_web.watch.protocol for the messages."""

    recheck_s = RECHECK_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subscriptions: dict[str, Subscription] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.keepers: list[asyncio.Task[None]] = []
        self.closing = False
        self.send_lock = asyncio.Lock()

    async def connect(self) -> None:
        """Accepts first: a browser sees a close code only of a socket that was open."""
        await self.accept()
        code = await self.check_rights()
        if code is not None:
            await self.end(code)
            return
        self.keepers = [asyncio.create_task(self._recheck()), asyncio.create_task(self._keep_alive())]

    async def disconnect(self, code: int) -> None:
        self.closing = True
        tasks = [*self.tasks.values(), *self.keepers]
        current = asyncio.current_task()
        for task in tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not current), return_exceptions=True)
        for subscription in self.subscriptions.values():
            await self._leave_group(subscription.stream)
        self.subscriptions.clear()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            request = parse_request(text_data if text_data is not None else bytes_data or b"")
            stream = parse_stream(request.get("stream"))
            if request["op"] == "subscribe":
                await self.subscribe(stream, parse_position(request.get("after")))
            elif request["op"] == "unsubscribe":
                await self.unsubscribe(stream)
            elif str(stream) in self.subscriptions:
                self.subscriptions[str(stream)].ack(parse_position(request.get("position")))
        except ProtocolError as error:
            await self.end(CloseCode.BAD_REQUEST, str(error))

    async def subscribe(self, stream: Stream, after: tuple[int, int] | None) -> None:
        """Follows the log from `after`, or an attempt's bell; a second subscribe replaces the first."""
        await self.unsubscribe(stream)
        if len(self.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise ProtocolError(f"A socket has at most {MAX_SUBSCRIPTIONS} subscriptions.")
        if not await stream_exists(stream):
            await self.send_message(
                Closed(op="closed", stream=str(stream), code=CloseCode.GONE, reason=f"There is no such {stream.kind}.")
            )
            return
        subscription = Subscription(stream=stream, send=self.send_message, after=after)
        self.subscriptions[str(stream)] = subscription
        if stream.kind == "attempt":
            await self.channel_layer.group_add(stream.group, self.channel_name)
        self.tasks[str(stream)] = asyncio.create_task(self._follow(subscription))

    async def unsubscribe(self, stream: Stream) -> None:
        subscription = self.subscriptions.pop(str(stream), None)
        if subscription is None:
            return
        task = self.tasks.pop(str(stream), None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._leave_group(stream)

    async def _leave_group(self, stream: Stream) -> None:
        if stream.kind == "attempt":
            await self.channel_layer.group_discard(stream.group, self.channel_name)

    async def doorbell(self, event: dict[str, Any]) -> None:
        """Channel layer message {"type": "doorbell", "attempt": "<uuid>"}. A rollout's bell rings at the hub."""
        subscription = self.subscriptions.get(f"attempt:{event.get('attempt')}")
        if subscription is not None:
            subscription.ring()

    async def send_message(self, message: Message) -> None:
        """Waits while the connection's buffers are full: that is the back pressure of every subscription."""
        async with self.send_lock:
            if self.closing:
                return
            try:
                await asyncio.wait_for(self.send(bytes_data=encode(message)), SEND_TIMEOUT_S)
            except TimeoutError:
                raise
            except (RuntimeError, OSError):  # the server's words for: the other side hung up a moment ago
                self.closing = True

    async def end(self, code: CloseCode, reason: str = "") -> None:
        if not self.closing:
            self.closing = True
            await self.close(code=int(code), reason=reason[:120] or None)

    async def check_rights(self) -> CloseCode | None:
        user = await load_user(self.scope)
        if user is None:
            return CloseCode.SIGNED_OUT
        return None if user.has_role(User.Role.VIEWER) else CloseCode.FORBIDDEN

    async def _follow(self, subscription: Subscription) -> None:
        try:
            await subscription.follow()
        except (TooSlow, TimeoutError):
            await self.end(CloseCode.TOO_SLOW, "No acknowledgement; connect again to go on.")
        except (OSError, RedisError, ValueError) as error:
            logger.warning("live subscription ended: %s", error, extra={"stream": str(subscription.stream)})
            await self.end(CloseCode.RESTART, "The live log cannot be read; connect again.")

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(self.recheck_s)
            code = await self.check_rights()
            if code is not None:
                await self.end(code)
                return

    async def _keep_alive(self) -> None:
        """Lets the browser tell a silent connection from a dead one."""
        with contextlib.suppress(TimeoutError):
            while True:
                await asyncio.sleep(ALIVE_S)
                await self.send_message(Alive(op="alive"))


@database_sync_to_async  # type: ignore[untyped-decorator]
def load_user(scope: dict[str, Any]) -> User | None:
    """The person of the session cookie, read afresh from the database: signed out means None."""
    scope_session = scope.get("session")
    key = scope_session.session_key if scope_session is not None else None
    if not key:
        return None
    store: type[SessionBase] = import_string(f"{settings.SESSION_ENGINE}.SessionStore")
    request = HttpRequest()
    request.session = store(key)
    user = get_user(request)
    return user if isinstance(user, User) and user.is_active else None


@database_sync_to_async  # type: ignore[untyped-decorator]
def stream_exists(stream: Stream) -> bool:
    if stream.kind == "rollout":
        return Rollout.objects.filter(pk=stream.id).exists()
    return Attempt.objects.filter(pk=stream.id).exists()
