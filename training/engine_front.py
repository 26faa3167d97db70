"""The door of an engine: an ASGI middleware inside vLLM's own server process.

From:  the engine's command line (`--middleware training.engine_front.EngineFront`), the key in GYRE_ENGINE_KEY.
To:    the engine's endpoints.
Holds: without the key nothing but /health answers. vLLM's own API key guards /v1 and /inference, but neither /pause
       nor /collective_rpc. A pause with a lease ends by itself when whoever asked for it died in between; if the
       weights were already exchanged, the version they were announced with is set before the engine goes on.
Never: parses or copies bodies of model calls; costs them one comparison.
"""

import asyncio
import contextlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY_VARIABLE = "GYRE_ENGINE_KEY"
LEASE_HEADER = b"x-gyre-pause-lease-s"
VERSION_HEADER = b"x-gyre-pause-version"


class EngineFront:
    def __init__(self, app: App, key: str | None = None) -> None:
        self._app = app
        self._bearer = b"Bearer " + (os.environ[KEY_VARIABLE] if key is None else key).encode()
        self._lease: asyncio.Task[None] | None = None
        self._is_exchanged = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            return await refuse(send)
        await self._app(scope, receive, self._observe(scope, headers, send) if scope["method"] == "POST" else send)
        return None

    def _observe(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> Send:
        """The same `send`, noticing that a pause, an exchange of weights or a resume succeeded."""
        path = scope["path"]
        if path not in ("/pause", "/collective_rpc", "/finish_weight_update", "/resume"):
            return send

        async def watching(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                self._note(path, headers, scope)
            await send(message)

        return watching

    def _note(self, path: str, headers: dict[bytes, bytes], scope: Scope) -> None:
        if path == "/resume":
            self._end_lease()
        elif path == "/pause" and LEASE_HEADER in headers:
            self._end_lease()
            lease_s = float(headers[LEASE_HEADER])
            self._lease = asyncio.create_task(self._expire(lease_s, headers.get(VERSION_HEADER, b"").decode(), scope))
        elif path in ("/collective_rpc", "/finish_weight_update"):
            self._is_exchanged = True

    def _end_lease(self) -> None:
        if self._lease is not None and self._lease is not asyncio.current_task():
            self._lease.cancel()
        self._lease, self._is_exchanged = None, False

    async def _expire(self, lease_s: float, version: str, scope: Scope) -> None:
        await asyncio.sleep(lease_s)
        if self._is_exchanged and version:
            await self._post("/update_weight_version", {"new_version": version}, scope)
        await self._post("/resume", None, scope)
        self._end_lease()

    async def _post(self, path: str, body: dict[str, str] | None, scope: Scope) -> None:
        """Call the engine's own endpoint from inside; its answer is dropped."""
        data = json.dumps(body).encode() if body else b""
        pending = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Message:
            return pending.pop() if pending else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            return None

        inside = {**scope, "path": path, "raw_path": path.encode(), "query_string": b"", "method": "POST", "state": {}}
        inside["headers"] = [(b"content-type", b"application/json")]
        with contextlib.suppress(RuntimeError):
            await self._app(inside, receive, send)


async def refuse(send: Send) -> None:
    body = b'{"error": "This engine needs its key: Authorization: Bearer ..."}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
