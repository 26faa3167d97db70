"""Send a call's answer to the harness: whole or streamed, resumable at any byte, kept warm while it waits.

From:  app.py, with a LiveCall; `Rollout.harness.delivery` says whether tokens are sent as they come.
To:    ASGI messages.
Holds: the body is a function of the call, its tokens and the places of its keep-alives (each in Valkey before it is
       sent), so a new gateway sends exactly the rest.
Never: fails after headers: it holds, and continues.
"""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from environments.gateway.dialects import Dialect, Head
from environments.gateway.messages import Request
from environments.gateway.open_rollout import LiveCall, OpenRollout
from environments.gateway.streaming import StreamEncoder
from environments.gateway.wire_journal import WireJournal

SILENT_S = 60.0
"""All seen harnesses wait 90 s for headers."""
KEEP_ALIVE_S = 5.0
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class GatewayLost(ConnectionError):
    """Gateway boundary: this process no longer holds the session; the connection is cut so that the relay asks anew."""


@dataclass(kw_only=True)
class Delivery:
    """One HTTP exchange that carries one call's answer."""

    rollout: OpenRollout
    call: LiveCall
    request: Request
    dialect: Dialect
    send: Send
    journal: WireJournal
    relay_call: str
    offset: int
    """Bytes of the body that the harness has already."""
    started: float = field(default_factory=time.monotonic)
    position: int = 0
    """Bytes of the body made so far, keep-alives not counted."""
    skipped: int = 0
    has_headers: bool = False
    is_gone: bool = False
    """The reader hung up."""
    old_keep_alives: list[int] = field(default_factory=list)
    last_sent: float = field(default_factory=time.monotonic)

    async def run(self) -> bool:
        """Whether the whole answer was sent. Raises GatewayLost."""
        if self.offset:
            self.old_keep_alives = await self.journal.load(self.call.id, self.relay_call) or list(
                self.call.keep_alives.get(self.relay_call, ())
            )
        head = Head(
            call=self.call.id.hex,
            created=int(self.call.row.started_at.timestamp()),
            model=self.request.model or self.rollout.model_name,
            include_usage=self.request.include_usage,
            num_prompt_tokens=self.call.row.num_prompt_tokens,
            hints=self.request.hints,
        )
        if self.request.stream:
            await self._stream(head)
        else:
            await self._whole(head)
        return not self.is_gone

    async def _whole(self, head: Head) -> None:
        while not self.call.answer and not self.call.failure:
            if await self._wait_or_stop():
                return
        if self.call.answer:
            await self._finish(self.dialect.whole(head, self.call.answer))
        else:
            await self._fail()

    async def _stream(self, head: Head) -> None:
        call = self.call
        encoder = StreamEncoder(self.dialect, head, self.rollout, call)
        is_live = self.rollout.delivery == "stream"
        num_sent, has_begun = 0, False
        while True:
            ready = call.journaled if is_live and not call.failure else 0
            pieces = []
            if (ready > num_sent or call.answer) and not has_begun:
                pieces.append(encoder.begin())
                has_begun = True
            if ready > num_sent:
                pieces += [encoder.token(token_id) for token_id in call.sampled[num_sent:ready]]
                num_sent = ready
            if call.answer:
                pieces.append(encoder.end(call))
                await self._finish(b"".join(pieces))
                return
            if call.failure:
                await self._fail(encoder)
                return
            await self._write(b"".join(pieces))
            if await self._wait_or_stop():
                return

    async def _wait_or_stop(self) -> bool:
        """Wait for news of the call, keeping the connection warm. True: the reader is gone."""
        if self.rollout.is_lost and not self.call.answer:
            raise GatewayLost("This gateway lost the session.")
        if self.is_gone:
            return True
        now = time.monotonic()
        due = self.last_sent + KEEP_ALIVE_S if self.has_headers else self.started + SILENT_S
        if due <= now or not await self.call.changed.wait(due - now):
            await self._keep_alive()
        return self.is_gone

    async def _keep_alive(self) -> None:
        blank = self.dialect.keep_alive if self.request.stream else b" "
        if self.relay_call:
            self.call.keep_alives.setdefault(self.relay_call, []).append(self.position)
            await self.journal.add(self.call.id, self.relay_call, self.position)
        await self._send_bytes(blank)

    async def _write(self, data: bytes) -> None:
        """Body bytes, with the keep-alives that an earlier gateway put between them."""
        while self.old_keep_alives and self.position <= self.old_keep_alives[0] < self.position + len(data):
            at = self.old_keep_alives.pop(0) - self.position
            await self._send_bytes(data[:at] + (self.dialect.keep_alive if self.request.stream else b" "))
            self.position += at
            data = data[at:]
        if data:
            self.position += len(data)
            await self._send_bytes(data)

    async def _send_bytes(self, data: bytes) -> None:
        if self.skipped < self.offset:
            skip = min(len(data), self.offset - self.skipped)
            self.skipped += skip
            data = data[skip:]
        await self._send_headers(200)
        if data:
            self.last_sent = time.monotonic()
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def _send_headers(self, status: int, length: int | None = None) -> None:
        if self.has_headers:
            return
        self.has_headers = True
        kind = b"text/event-stream; charset=utf-8" if self.request.stream and status == 200 else b"application/json"
        headers = [(b"content-type", kind)]
        if self.request.stream:
            headers.append((b"cache-control", b"no-cache"))
        if self.relay_call:
            headers.append((b"x-gyre-relay", b"1"))
        elif length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _finish(self, data: bytes) -> None:
        if not self.has_headers and not self.request.stream:
            await self._send_headers(200, len(data))
        await self._write(data)
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, encoder: StreamEncoder | None = None) -> None:
        """A call that no engine would answer: an error status, or its words where the status has gone out already."""
        if not self.has_headers and not self.offset:
            body = self.dialect.error(500, self.call.failure, code="engine_refused")
            await self._send_headers(500, len(body))
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
            return
        if encoder:
            await self._finish(encoder.fail(self.call.failure))
        else:
            await self._finish(self.dialect.error(500, self.call.failure, code="engine_refused"))


async def watch_hang_up(receive: Callable[[], Awaitable[MutableMapping[str, Any]]], delivery: Delivery) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    delivery.is_gone = True
    delivery.call.changed.fire()
