"""The ASGI app that harnesses talk to.

From:  relays (unix socket) and direct clients (TCP), in a model provider's dialect; other gateways (forwarded).
To:    sessions -> calls -> delivery.
Holds: every error is answered in the dialect's own form and says what would be right; no Django request cycle.
Never: creates a session, logs a prompt, an answer or a key.

    relay -> Gateway.__call__ -> Sessions.find -> dialect.read_request -> Calls.begin -> Delivery.run -> relay
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import django
import orjson
import psycopg

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")
django.setup()

from django.conf import settings as settings  # noqa: E402

from environments.gateway.bodies import HungUp, read_body, read_request  # noqa: E402
from environments.gateway.calls import Calls  # noqa: E402
from environments.gateway.delivery import Delivery, GatewayLost, watch_hang_up  # noqa: E402
from environments.gateway.dialects import BadRequest, Dialect, Target, find_dialect  # noqa: E402
from environments.gateway.forwarding import forward  # noqa: E402
from environments.gateway.generation import Generation  # noqa: E402
from environments.gateway.http_client import HttpClient  # noqa: E402
from environments.gateway.messages import Request, find_media  # noqa: E402
from environments.gateway.record import LeaseLost, Record  # noqa: E402
from environments.gateway.refusal import Refusal  # noqa: E402
from environments.gateway.routing import Routing  # noqa: E402
from environments.gateway.sessions import Elsewhere, Held, Sessions  # noqa: E402
from environments.gateway.wire_journal import WireJournal  # noqa: E402
from environments.rendering.protocol import RendererError  # noqa: E402

logger = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One HTTP request, before its body."""

    method: str
    path: str
    """Below the session's base."""
    headers: dict[str, str]
    path_key: str
    header_keys: tuple[str, ...]
    query: dict[str, str]

    @property
    def relay_call(self) -> str:
        return self.headers.get("x-gyre-relay-call", "")[:64]

    @property
    def target(self) -> Target:
        return Target(method=self.method, path=self.path, query=self.query, headers=self.headers)

    @property
    def offset(self) -> int:
        text = self.headers.get("x-gyre-relay-offset", "0")
        return int(text) if text.isdigit() else 0


class Gateway:
    def __init__(self, *, socket_dir: Path | None = None, socket_name: str = "") -> None:
        self.socket_dir = socket_dir or Path(settings.GATEWAY_SOCKET_DIR)
        self.socket_name = socket_name or f"gw-{os.getpid()}-{secrets.token_hex(3)}.sock"
        self.host = os.uname().nodename
        self.record = Record(f"{self.host}/{self.socket_name}"[:100])
        self.client = HttpClient()
        self.routing = Routing(self.record, self.client)
        self.calls = Calls(record=self.record, generation=Generation(routing=self.routing, client=self.client))
        self.sessions = Sessions(record=self.record, calls=self.calls, socket_dir=self.socket_dir, host=self.host)
        self.num_requests = 0

    async def start(self) -> None:
        self.journal = WireJournal()
        await self.routing.start()
        self.sessions.start()

    async def stop(self) -> None:
        """Calls under way stay open in the record; the next gateway goes on with them."""
        for held in self.sessions.held.values():
            await self.calls.stop(held.rollout)
        await self.routing.stop()
        await self.sessions.stop()
        self.client.close()
        await self.journal.close()
        await self.record.close()

    async def __call__(self, scope: Scope, receive: Receive, raw_send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, raw_send)
            return
        if scope["type"] != "http":
            raise ValueError(f"The gateway speaks HTTP only, not {scope['type']}.")
        self.num_requests += 1
        incoming = read_incoming(scope)
        dialect, what = find_dialect(incoming.target)
        has_begun = False

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await raw_send(message)

        try:
            if await self._answer_plain(incoming, receive, send):
                return
            key, is_path_key = session_key(incoming)
            held = await self._find(key, is_path_key=is_path_key)
            if isinstance(held, Elsewhere):
                await self._forward(held, scope, incoming, receive, send)
            elif what is None:
                raise Refusal(404, "unknown_path", f"{incoming.method} {incoming.path} is no path of this gateway.")
            elif what in ("models", "model"):
                body = dialect.models(held.rollout.model_name, single=what == "model")
                await send_json(send, 200, body, incoming.relay_call)
            elif what == "count":
                request = await read_request(dialect, incoming.target, receive)
                refuse_media(request, held)
                async with held.rollout.lock:
                    body = dialect.count(await count_tokens(held, request))
                await send_json(send, 200, body, incoming.relay_call)
            else:
                await self._complete(held, key, is_path_key, dialect, incoming, receive, send)
        except Refusal as refusal:
            body = dialect.error(refusal.status, refusal.message, code=refusal.code, param=refusal.param)
            await send_json(send, refusal.status, body, incoming.relay_call)
        except BadRequest as bad:
            body = dialect.error(400, bad.message, code="invalid_request", param=bad.param)
            await send_json(send, 400, body, incoming.relay_call)
        except HungUp:
            return
        except RendererError as error:
            body = dialect.error(400, f"The model cannot be told this conversation: {error}", code="not_renderable")
            await send_json(send, 400, body, incoming.relay_call)
        except asyncio.CancelledError:  # shutting down: the next gateway goes on
            if not has_begun:
                await send_retry(send)
        except (GatewayLost, OSError):
            if has_begun:
                raise  # only a cut tells the relay that there is more
            await send_retry(send)

    async def _complete(
        self,
        held: Held,
        key: str,
        is_path_key: bool,
        dialect: Dialect,
        incoming: Incoming,
        receive: Receive,
        send: Send,
    ) -> None:
        request = await read_request(dialect, incoming.target, receive)
        refuse_media(request, held)
        for _ in range(20):
            try:
                call = await self.calls.begin(
                    held.rollout,
                    session_id=held.session.id,
                    request=request,
                    relay_call=incoming.relay_call,
                    dialect=dialect,
                )
                break
            except LeaseLost:
                held.rollout.is_lost = True
                again = await self._find(key, is_path_key=is_path_key)
                if isinstance(again, Elsewhere):
                    raise GatewayLost("The session moved to another gateway.") from None
                held = again
        else:
            raise GatewayLost("The session's lease could not be kept.")
        delivery = Delivery(
            rollout=held.rollout,
            call=call,
            request=request,
            dialect=dialect,
            send=send,
            journal=self.journal,
            relay_call=incoming.relay_call,
            offset=incoming.offset,
        )
        watcher = asyncio.create_task(watch_hang_up(receive, delivery))
        self.calls.readers.came(call)
        delivered = False
        try:
            delivered = await delivery.run()
        finally:
            watcher.cancel()
            self.calls.readers.left(held.rollout, call, delivered=delivered)

    async def _find(self, key: str, *, is_path_key: bool) -> Held | Elsewhere:
        """Waits while Postgres cannot be reached."""
        wait_s = 0.05
        while True:
            try:
                return await self.sessions.find(key, is_path_key=is_path_key)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                await asyncio.sleep(wait_s)
                wait_s = min(1.0, wait_s * 2)

    async def _forward(self, held: Elsewhere, scope: Scope, incoming: Incoming, receive: Receive, send: Send) -> None:
        host, _, name = held.gateway.partition("/")
        if host != self.host or incoming.headers.get("x-gyre-forwarded"):
            await send_retry(send)
            return
        body = await read_body(receive)
        await forward(self.client, socket=self.socket_dir / name, scope=scope, body=body, receive=receive, send=send)

    async def _answer_plain(self, incoming: Incoming, receive: Receive, send: Send) -> bool:
        """Paths that need no session."""
        if incoming.method == "HEAD":
            await send_json(send, 200, b"", "")
        elif incoming.path == "/health" and not incoming.path_key:
            await send_json(send, 200, orjson.dumps({"gateway": self.record.gateway}), "")
        elif incoming.path == "/metrics" and not incoming.path_key:
            await send_text(send, self.metrics())
        elif incoming.path == "/relay/ack" and incoming.method == "POST":
            body = await read_body(receive)
            await self.sessions.acknowledge(incoming.relay_call or body.decode("latin-1").strip()[:64])
            await send_json(send, 204, b"", "")
        else:
            return False
        return True

    def metrics(self) -> str:
        rollouts = {held.rollout.id: held.rollout for held in self.sessions.held.values()}.values()
        values = {
            "gyre_gateway_requests_total": self.num_requests,
            "gyre_gateway_sessions": len(self.sessions.held),
            "gyre_gateway_open_calls": sum(call.is_open for r in rollouts for call in r.calls.values()),
        }
        return "".join(f"{name} {value}\n" for name, value in values.items())

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def read_incoming(scope: Scope) -> Incoming:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    path, path_key = scope["path"], ""
    if path.startswith("/s/"):
        path_key, _, rest = path[3:].partition("/")
        path = "/" + rest
    bearer = headers.get("authorization", "")
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
    given = (
        bearer[7:].strip() if bearer.lower().startswith("bearer ") else "",
        headers.get("x-api-key", ""),
        headers.get("x-goog-api-key", "") or (query.get("key", "") if path.startswith("/v1beta") else ""),
    )
    return Incoming(
        method=scope["method"],
        path=path.rstrip("/") or "/",
        headers=headers,
        path_key=unquote(path_key),
        header_keys=tuple(dict.fromkeys(key for key in given if key)),
        query=query,
    )


def session_key(incoming: Incoming) -> tuple[str, bool]:
    """(key, whether the path gave it). Raises Refusal."""
    keys = list(dict.fromkeys([key for key in (incoming.path_key, *incoming.header_keys) if key]))
    if len(keys) > 1:
        raise Refusal(
            409,
            "two_keys",
            "This request carries two different keys. Use the session's key in the path and as API key.",
        )
    if not keys:
        raise Refusal(
            401, "invalid_api_key", "No session key. Use the base URL /s/<session key> or send it as API key."
        )
    return keys[0], bool(incoming.path_key)


async def count_tokens(held: Held, request: Request) -> int:
    tree, renderer = held.rollout.tree, held.rollout.renderer
    return await asyncio.to_thread(tree.count, request, renderer) if request.is_large else tree.count(request, renderer)


def refuse_media(request: Request, held: Held) -> None:
    """Raises BadRequest for parts that the model cannot take."""
    found = find_media(request.messages)
    if found and not getattr(held.rollout.renderer, "takes_media", False):
        kind, where = found
        raise BadRequest(
            f"{where} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, and {held.rollout.model_name} reads text only. "
            "Leave it out, or choose a model that takes it.",
            param=where,
        )


async def send_json(send: Send, status: int, body: bytes, relay_call: str) -> None:
    headers = [(b"content-type", b"application/json")]
    headers.append((b"x-gyre-relay", b"1") if relay_call else (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_text(send: Send, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def send_retry(send: Send) -> None:
    """Another host holds the session: the relay asks again, perhaps elsewhere, until the lease moves."""
    headers = [(b"content-length", b"0"), (b"x-gyre-relay-retry", b"1"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
