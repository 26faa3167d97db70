"""Refuse a request body that is too large before it is read.

From:  the web process's server.
To:    Django's application, which would otherwise put a body of any length on disk before it looks at it.
Holds: bodies of more than the bound are answered 413, by what their header claims or by what has come so far.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

UPLOAD_PATHS = ("/tasks/import", "/api/tasksets")
ORDINARY_BYTES = 16 << 20


class BodyLimit:
    """upload_bytes: for the two places that take an archive; all others take ORDINARY_BYTES."""

    def __init__(self, application: Application, *, upload_bytes: int) -> None:
        self.application = application
        self.upload_bytes = upload_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        limit = self.upload_bytes if scope["path"].rstrip("/") in UPLOAD_PATHS else ORDINARY_BYTES
        claimed = dict(scope["headers"]).get(b"content-length", b"0")
        if claimed.isdigit() and int(claimed) > limit:
            await refuse(send, limit)
            return
        left = limit
        has_answered = False

        async def counted() -> Message:
            nonlocal left, has_answered
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                has_answered = True
                await refuse(send, limit)
                return {"type": "http.disconnect"}
            return message

        async def once(message: Message) -> None:
            if not has_answered:
                await send(message)

        await self.application(scope, counted, once)


async def refuse(send: Send, limit: int) -> None:
    text = f"413: the request is larger than {limit >> 20} MiB. Nothing was done.\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": text})
