"""Pass a request to the gateway that holds its session, and its answer back.

From:  app.py.
To:    that gateway's own socket on this host.
Holds: a hang-up of either side is a hang-up of the other, so grace and resume work as without the hop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from environments.gateway.http_client import Address, HttpClient, Response

HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host", b"expect"}
Message = MutableMapping[str, Any]


async def forward(
    client: HttpClient,
    *,
    socket: Path,
    scope: Message,
    body: bytes,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name.lower() not in HOP_BY_HOP
    }
    path = scope["raw_path"].decode("latin-1") + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
    passing = asyncio.create_task(
        _pass(
            client, Address(socket=str(socket)), scope["method"], path, {**headers, "x-gyre-forwarded": "1"}, body, send
        )
    )
    hang_up = asyncio.create_task(_hang_up(receive))
    try:
        await asyncio.wait({passing, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if passing.done():
            await passing
    finally:
        for task in (passing, hang_up):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await task


async def _pass(
    client: HttpClient,
    address: Address,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Raises OSError where the holder went away: the connection is cut, a relay asks again."""
    response: Response = await client.request(address, method=method, path=path, headers=headers, body=body)
    async with response:
        back = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in response.headers.items()
            if name.encode() not in HOP_BY_HOP - {b"content-length"}
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": back})
        while piece := await response.read_piece():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _hang_up(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
