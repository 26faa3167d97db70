"""Wire formats of model providers: bytes of a request to a canonical Request, an Answer to bytes. Nothing else.

From:  app.py (requests), delivery.py and streaming.py (answers).
To:    messages.Request; response bytes.
Holds: response bytes are a function of the call and its tokens alone, so a new gateway can send the rest of them.
       The same conversation in any dialect is the same canonical Request, so it gives the same tokens.
Never: knows sessions, trees or engines.

A new dialect is one file with a class like this Protocol, and one line in `load_dialects`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol

from environments.gateway.messages import Message, Request

What = Literal["complete", "count", "models", "model"]
"""What a path asks for: an answer, the prompt's length, the list of models, one model."""


class BadRequest(Exception):
    """The request cannot be honoured exactly; says which field and what would be right."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a request is sent to, below the session's base."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every piece of an answer repeats."""

    call: str
    """32 hex digits."""
    created: int
    model: str
    include_usage: bool
    num_prompt_tokens: int = 0
    hints: Mapping[str, Any] = field(default_factory=dict)
    """Request.hints: what the dialect noted for itself when it read the request."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    message: Message
    finish_reason: str
    """stop | length | tool_calls"""
    num_prompt_tokens: int
    num_sampled_tokens: int
    num_cached_tokens: int


class AnswerStream(Protocol):
    """One streamed answer. Reasoning comes before text; what was sent is not sent again by `end`."""

    def begin(self) -> bytes: ...

    def reasoning(self, text: str) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def end(self, answer: Answer) -> bytes:
        """Tool calls, finish reason, usage and terminal event."""

    def fail(self, message: str) -> bytes:
        """Instead of `end`, where the status has gone out already."""


class Dialect(Protocol):
    name: str
    keep_alive: bytes
    """Sent inside a waiting stream; clients skip it. (A waiting JSON body gets blanks.)"""

    def routes(self, target: Target) -> What | None:
        """None: not a path of this dialect."""

    def read_request(self, body: Any, target: Target) -> Request:
        """Raises BadRequest."""

    def whole(self, head: Head, answer: Answer) -> bytes: ...

    def open_stream(self, head: Head) -> AnswerStream: ...

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes: ...

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        """(status, code, message) that makes this provider's clients compact."""

    def count(self, num_prompt_tokens: int) -> bytes: ...

    def models(self, name: str, *, single: bool = False) -> bytes: ...


@cache
def load_dialects() -> tuple[Dialect, ...]:
    """Messages before Chat: both have `/v1/models`, told apart by Anthropic's version header."""
    from environments.gateway.dialects.chat import Chat
    from environments.gateway.dialects.gemini import Gemini
    from environments.gateway.dialects.messages import Messages
    from environments.gateway.dialects.responses import Responses

    return Messages(), Gemini(), Responses(), Chat()


def find_dialect(target: Target) -> tuple[Dialect, What | None]:
    """The dialect of a target and what is asked of it. None: no dialect has this path; errors go in the likeliest."""
    for dialect in load_dialects():
        if (what := dialect.routes(target)) is not None:
            return dialect, what
    messages, gemini, _, chat = load_dialects()
    if target.path.startswith("/v1beta") or "x-goog-api-key" in target.headers:
        return gemini, None
    return (messages if "anthropic-version" in target.headers else chat), None
