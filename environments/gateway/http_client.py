"""A small HTTP/1.1 client over TCP and unix sockets, with kept connections and streamed bodies.

From:  engine_client (engines) and sessions (forwarding to the gateway that holds a session).
To:    Response: status, headers, body in the pieces in which it arrives.
Holds: a kept connection that the server closed meanwhile is replaced silently; a request whose answer has begun is
       never repeated.
Never: follows redirects, sets a read deadline (a held call may be silent for hours).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

MAX_KEPT = 256
CONNECT_TIMEOUT_S = 5.0
HIGH_WATER_BYTES = 1 << 20


class ConnectionLost(OSError):
    """The server went away before its answer was complete."""


@dataclass(frozen=True, kw_only=True)
class Address:
    host: str = ""
    port: int = 0
    socket: str = ""

    @classmethod
    def from_url(cls, url: str) -> Self:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls(socket=parts.path)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"An engine's base_url must be http://host:port or unix:///path.sock, not {url!r}.")
        return cls(host=parts.hostname, port=parts.port or 80)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_used = False
        self.begin()

    def begin(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.size = 0
        self.is_complete = False
        self.can_be_kept = False
        self.lost = False
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.lost = True
            self.close()
        if self.size > HIGH_WATER_BYTES and self.transport:
            self.transport.pause_reading()
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.wake()

    # httptools
    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.size += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.can_be_kept = self.parser.should_keep_alive()  # only in this callback: after it the parser says False

    def close(self) -> None:
        if self.transport:
            self.transport.close()


class Response:
    """Use as an async context manager: leaving it gives the connection back, or closes it in mid-body."""

    def __init__(self, client: "HttpClient", address: Address, connection: _Connection) -> None:
        self._client, self._address, self._connection = client, address, connection

    @property
    def status(self) -> int:
        return self._connection.status

    @property
    def headers(self) -> dict[str, str]:
        return self._connection.headers

    async def read_piece(self) -> bytes:
        """What has arrived; waits for something. Empty at the end. Raises ConnectionLost."""
        connection = self._connection
        while not connection.pieces:
            if connection.is_complete:
                return b""
            if connection.lost:
                raise ConnectionLost("The connection broke before the answer was complete.")
            await connection.wait()
        data = b"".join(connection.pieces)
        connection.pieces, connection.size = [], 0
        if connection.transport and not connection.transport.is_reading() and not connection.transport.is_closing():
            connection.transport.resume_reading()
        return data

    async def read(self) -> bytes:
        pieces = []
        while piece := await self.read_piece():
            pieces.append(piece)
        return b"".join(pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.give_back(self._address, self._connection)


class HttpClient:
    def __init__(self) -> None:
        self._idle: dict[Address, list[_Connection]] = {}

    async def request(
        self, address: Address, *, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Returns when the headers are here. Raises OSError (ConnectionLost among them)."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {address.host or 'localhost'}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {len(body)}", "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        while True:
            connection = await self._take(address)
            was_used, connection.is_used = connection.is_used, True
            assert connection.transport
            connection.transport.write(head + body if len(body) < 65536 else head)
            if len(body) >= 65536:
                connection.transport.write(body)
            try:
                while not connection.status and not connection.lost:
                    await connection.wait()
            except BaseException:
                connection.close()
                raise
            if connection.status:
                return Response(self, address, connection)
            connection.close()
            if not was_used:
                raise ConnectionLost("The server closed the connection without an answer.")

    async def _take(self, address: Address) -> _Connection:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if not connection.lost and connection.transport and not connection.transport.is_closing():
                connection.begin()
                return connection
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.socket:
                _, made = await loop.create_unix_connection(_Connection, address.socket)
            else:
                _, made = await loop.create_connection(_Connection, address.host, address.port)
        return made

    def give_back(self, address: Address, connection: _Connection) -> None:
        idle = self._idle.setdefault(address, [])
        is_clean = connection.is_complete and not connection.lost and not connection.pieces
        if is_clean and connection.can_be_kept and len(idle) < MAX_KEPT:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
