"""The messages of the live websocket `/live` (docs/reference/live-protocol.md), both ways, as types.

From:  a browser tab (`Subscribe`, `Unsubscribe`, `Ack`), as JSON in a text or binary frame.
To:    the same tab (`Subscribed`, `Events`, `Reset`, `Changed`, `Closed`, `Alive`), as JSON in binary frames.
Holds: events of a stream arrive in the order of its log, each once; at most one `Events` frame of a stream is
       unacknowledged, so a slow reader costs the server one frame and nothing more.
Never: touches sockets or storage.

An exchange, with every value:

    > {"op": "subscribe", "stream": "rollout:0b7e...", "after": [1764586200000, 17]}
    < {"op": "subscribed", "stream": "rollout:0b7e...", "head": [1764586200000, 19]}
    < {"op": "events", "stream": "rollout:0b7e...", "epoch": 1764586200000, "lag": 0,
       "entries": [[18, "tokens", {...}], [19, "tokens", {...}]]}
    > {"op": "ack", "stream": "rollout:0b7e...", "position": [1764586200000, 19]}
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

import orjson

MAX_REQUEST_BYTES = 4096
MAX_SUBSCRIPTIONS = 256

Position = tuple[int, int]
"""(epoch, n) of an entry of a live log."""


class CloseCode(IntEnum):
    """Of the socket, and of one stream in `Closed`."""

    SIGNED_OUT = 4001
    FORBIDDEN = 4003
    GONE = 4004
    TOO_SLOW = 4008
    RESTART = 4010
    BAD_REQUEST = 4400


class Subscribe(TypedDict):
    op: Literal["subscribe"]
    stream: str
    after: NotRequired[list[int] | None]
    """The last entry the reader has. None: the log from its beginning."""


class Unsubscribe(TypedDict):
    op: Literal["unsubscribe"]
    stream: str


class Ack(TypedDict):
    op: Literal["ack"]
    stream: str
    position: list[int]


class Subscribed(TypedDict):
    op: Literal["subscribed"]
    stream: str
    head: list[int] | None


class Events(TypedDict):
    op: Literal["events"]
    stream: str
    epoch: int
    entries: list[tuple[int, str, Any]]
    """[n, kind, data]"""
    lag: int
    """Entries of the log that are still behind this frame."""


class Reset(TypedDict):
    op: Literal["reset"]
    stream: str
    reason: Literal["trimmed", "slow"]
    """trimmed: the log no longer reaches back to `after`. slow: the reader fell too far behind."""
    lag: int
    """The stream stops here. The reader loads a snapshot and subscribes again from its position."""


class Changed(TypedDict):
    op: Literal["changed"]
    stream: str
    """Of an attempt: something about it or its rollouts changed; load what you show again."""


class Closed(TypedDict):
    op: Literal["closed"]
    stream: str
    code: int
    reason: str


class Alive(TypedDict):
    op: Literal["alive"]


Request = Subscribe | Unsubscribe | Ack
Message = Subscribed | Events | Reset | Changed | Closed | Alive


class ProtocolError(ValueError):
    """The reader sent what the protocol does not know; the text says what would be right."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What can be subscribed to: `rollout:<uuid>` (a live log) or `attempt:<uuid>` (a bell)."""

    kind: Literal["rollout", "attempt"]
    id: UUID

    @property
    def group(self) -> str:
        """The channel layer group of its doorbell."""
        return f"{self.kind}.{self.id.hex}"

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


def parse_stream(text: object) -> Stream:
    kind, _, identifier = str(text).partition(":")
    try:
        uuid = UUID(identifier)
    except ValueError as error:
        raise ProtocolError("`stream` must be rollout:<uuid> or attempt:<uuid>.") from error
    if kind == "rollout":
        return Stream(kind="rollout", id=uuid)
    if kind == "attempt":
        return Stream(kind="attempt", id=uuid)
    raise ProtocolError("`stream` must be rollout:<uuid> or attempt:<uuid>.")


def parse_position(value: object) -> Position | None:
    """[epoch, n] or None; anything else is refused."""
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2:
        epoch, n = value
        if type(epoch) is int and type(n) is int and 0 <= epoch < 2**63 and 0 <= n < 2**63:
            return epoch, n
    raise ProtocolError("A position must be null or [epoch, n], two whole numbers that are not negative.")


def parse_request(data: bytes | str) -> dict[str, Any]:
    """A reader's frame. Its `op` is known and its fields are there; stream and position are parsed by the caller."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ProtocolError(f"A request has at most {MAX_REQUEST_BYTES} bytes.")
    try:
        request = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("A request must be one JSON object.") from error
    if not isinstance(request, dict) or request.get("op") not in ("subscribe", "unsubscribe", "ack"):
        raise ProtocolError("`op` must be subscribe, unsubscribe or ack.")
    return request


def encode(message: Message) -> bytes:
    return orjson.dumps(message)
