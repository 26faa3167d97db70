"""What the gateway asks of a renderer: messages to token ids and back.

From:  environments.gateway, training (demonstrations), environments.scripted.
To:    plain lists of ids and canonical messages (environments.gateway.messages).
Holds: sampled ids are never encoded again; `render` concatenated is what the model's own template gives.
Never: talks to an engine or to the database.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]
"""Canonical: role, content, reasoning?, tool_calls? [{id, name, arguments}], tool_call_id?, name?"""
Tool = Mapping[str, Any]
"""{"name", "description"?, "parameters"?} or {"type": "function", "function": {...}}"""


class Decoder(Protocol):
    """Text of sampled ids, as they come. Stop tokens give no text."""

    def push(self, token_id: int) -> str:
        """Text that is certain now; never half a code point."""

    def flush(self) -> str:
        """What is left when nothing more comes: an unfinished code point becomes U+FFFD."""


class Renderer(Protocol):
    name: str
    stop_token_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        """Ids of each message, without generation prompt; what the template adds belongs to the message it precedes."""

    def opener(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The generation prompt after these messages."""

    def extend(
        self,
        tail_ids: Sequence[int],
        answer: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[list[int]] | None:
        """Ids that each new message adds after a sampled answer.

        tail_ids: the last ids of the context, at least the whole answer. Where it was cut by length, the
        closing ids are added as part of the first new message. None: not proven, render in full.
        """

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        """Sampled ids (without opener) -> canonical assistant message."""

    def decoder(self) -> Decoder: ...

    def encode_text(self, text: str) -> list[int]:
        """Ordinary text; special tokens written in it stay text."""


class RendererError(Exception):
    """The model's files cannot be rendered with. Says which file, and what to do."""
