"""Wire formats of model providers: bytes of a request to a canonical Request, an Answer to bytes. Nothing else.

From:  app.py (requests), delivery.py (answers).
To:    messages.Request; response bytes.
Holds: response bytes are a function of the call and its tokens alone, so a new gateway can send the rest of them.
Never: knows sessions, trees or engines.

A new dialect is one file with a class like this Protocol, and one line in DIALECTS.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from environments.gateway.messages import Message, Request


class BadRequest(Exception):
    """The request cannot be honoured exactly; says which field and what would be right."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every piece of an answer repeats."""

    call: str
    """32 hex digits."""
    created: int
    model: str
    include_usage: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    message: Message
    finish_reason: str
    """stop | length | tool_calls"""
    num_prompt_tokens: int
    num_sampled_tokens: int
    num_cached_tokens: int


class Dialect(Protocol):
    name: str
    keep_alive: bytes
    """Sent inside a waiting stream; clients skip it. (A waiting JSON body gets blanks.)"""

    def routes(self, method: str, path: str) -> str | None:
        """`complete`, `models`, or None: not a path of this dialect. `path` is below the session's base."""

    def read_request(self, body: Any, headers: Mapping[str, str]) -> Request:
        """Raises BadRequest."""

    def whole(self, head: Head, answer: Answer) -> bytes: ...

    def stream_begin(self, head: Head) -> bytes: ...

    def stream_reasoning(self, head: Head, text: str) -> bytes: ...

    def stream_text(self, head: Head, text: str) -> bytes: ...

    def stream_end(self, head: Head, answer: Answer) -> bytes:
        """Tool calls, finish reason, usage and terminal event; text was sent before."""

    def stream_error(self, message: str) -> bytes: ...

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes: ...

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        """(status, code, message) that makes this provider's clients compact."""

    def models(self, name: str) -> bytes: ...


def find_dialect(method: str, path: str) -> tuple[Dialect, str] | None:
    """The dialect of a path below a session's base, and what is asked of it."""
    from environments.gateway.dialects.chat import Chat

    dialects: tuple[Dialect, ...] = (Chat(),)
    for dialect in dialects:
        if (what := dialect.routes(method, path)) is not None:
            return dialect, what
    return None
