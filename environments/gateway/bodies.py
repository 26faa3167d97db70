"""A request's body: read within bounds of size and time, unpacked within bounds, and given to its dialect.

From:  app.py, with the target of the request and ASGI's receive.
To:    messages.Request; Refusal and BadRequest.
Holds: neither a huge, a slow nor a packed body takes another session down.
"""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any

import zstandard

from environments.gateway.dialects import BadRequest, Dialect, Target
from environments.gateway.messages import Request
from environments.gateway.refusal import Refusal
from environments.text import load_json

MAX_BODY_BYTES = 128 << 20
BODY_PATIENCE_S = 60.0
"""Between two pieces of a request's body."""
BODY_DEADLINE_S = 600.0
"""For the whole body."""
LARGE_BYTES = 1 << 20
"""Bodies beyond it are read and planned in a thread, so that other sessions go on."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class HungUp(Exception):
    """The client went away before its request was complete."""


async def read_request(dialect: Dialect, target: Target, receive: Receive) -> Request:
    """Raises Refusal, BadRequest, HungUp."""
    async with asyncio.timeout(BODY_DEADLINE_S) as deadline:
        try:
            raw = await read_body(receive)
        except asyncio.CancelledError:
            if deadline.expired():
                raise Refusal(408, "slow_body", f"The body took longer than {BODY_DEADLINE_S:.0f} s.") from None
            raise
    if len(raw) > LARGE_BYTES:
        return await asyncio.to_thread(parse_request, dialect, target, raw)
    return parse_request(dialect, target, raw)


def parse_request(dialect: Dialect, target: Target, raw: bytes) -> Request:
    """Raises Refusal, BadRequest."""
    plain = decode_body(raw, target.headers.get("content-encoding", ""))
    try:
        body = load_json(plain)
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}") from error
    request = dialect.read_request(body, target)
    return replace(request, is_large=len(plain) > LARGE_BYTES)


async def read_body(receive: Receive) -> bytes:
    pieces, size = [], 0
    while True:
        try:
            async with asyncio.timeout(BODY_PATIENCE_S):
                message = await receive()
        except TimeoutError:
            raise Refusal(408, "slow_body", f"The body stopped for {BODY_PATIENCE_S:.0f} s.") from None
        if message["type"] == "http.disconnect":
            raise HungUp
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MAX_BODY_BYTES:
            raise Refusal(413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        if not message.get("more_body"):
            return b"".join(pieces)


def decode_body(body: bytes, encoding: str) -> bytes:
    try:
        if encoding == "gzip":
            reader = zlib.decompressobj(wbits=31)
            plain = reader.decompress(body, MAX_BODY_BYTES)
            if reader.unconsumed_tail:
                raise Refusal(413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes when unpacked.")
            if not reader.eof:
                raise BadRequest("The body is cut: its gzip stream has no end.")
            return plain
        if encoding == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(body) as stream:
                plain = stream.read(MAX_BODY_BYTES + 1)
            if len(plain) > MAX_BODY_BYTES:
                raise Refusal(413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes when unpacked.")
            return plain
    except (zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise BadRequest(f"The body is not {encoding}: {error}") from error
    if encoding not in ("", "identity"):
        raise Refusal(415, "unknown_encoding", f"content-encoding must be gzip, zstd or identity, not {encoding!r}.")
    return body
