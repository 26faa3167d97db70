"""The canonical message, and the digests by which a request's history is recognised.

From:  dialects build messages; the tree keys its nodes on digests.
To:    {"role", "content", "reasoning"?, "reasoning_of"?, "tool_calls"? [{"id", "name", "arguments"}],
       "tool_call_id"?, "name"?, "is_error"?}. content is text, or a list of parts where one is no text.
       reasoning_of: the call that a client's sealed reasoning names.
Holds: what harnesses really do to history (design 2.3: shape) gives the same digest, nothing more does.
Never: knows a wire format.

An assistant turn that we sampled is keyed on its call ids and its stripped text, never on argument text, tool names
or reasoning: harnesses rewrite those.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.text import dump_wire_json, replace_surrogates

Message = dict[str, Any]
KEY_BYTES = 20
NO_KEY = b""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of a harness, as its dialect understood it."""

    dialect: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    stream: bool
    requested: dict[str, Any]
    """Parameters that it asked for (temperature, max_tokens, stop, ...)."""
    unknown: dict[str, Any]
    model: str = ""
    include_usage: bool = False
    agent: str = ""
    """Sub-agent id, where the harness sends one: identical bodies of two agents are two samples."""
    is_retry: bool = False
    """The client says so (x-stainless-retry-count)."""
    is_large: bool = False
    """Worth a thread of its own."""
    hints: Mapping[str, Any] = field(default_factory=dict)
    """What the dialect notes for itself: the form in which the answer must be written."""


def tool_call_id(call: str, position: int) -> str:
    """[A-Za-z0-9_], unique, and the same when a new gateway answers for a dead one. call: 32 hex digits."""
    digest = hashlib.blake2b(bytes.fromhex(call) + bytes([position % 256]), digest_size=12)
    return "call_" + digest.hexdigest()


def text_of(content: Any) -> str:
    """Of a message's content; parts that are no text count as nothing."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def find_media(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """(kind, where on the wire) of the first part that is no text."""
    for message in messages:
        if isinstance(message.get("content"), list):
            for part in message["content"]:
                if part["type"] != "text":
                    return part["type"], part.get("where", "")
    return None


def digest_root(tools: Sequence[Mapping[str, Any]]) -> bytes:
    """Parent key of a root: a conversation with other tools is another conversation."""
    return _hash(b"root", dump_wire_json(list(tools)) if tools else b"")


def chain_key(parent_key: bytes, message_digest: bytes) -> bytes:
    return hashlib.blake2b(parent_key + message_digest, digest_size=KEY_BYTES).digest()


def digest_message(
    message: Mapping[str, Any], known_call_ids: Collection[str], volatile: Sequence[re.Pattern[str]]
) -> bytes:
    """known_call_ids: ids that this rollout's answers carried."""
    role = message["role"]
    content = digest_text(message.get("content"))
    if role == "assistant":
        calls = message.get("tool_calls") or []
        text = content.strip()
        if any(call["id"] in known_call_ids for call in calls):
            return _hash(b"answer", _encode(text), *(_encode(call["id"]) for call in calls))
        return _hash(
            b"assistant",
            _encode(text),
            *(_encode(part) for call in calls for part in (call["id"], call["name"], call["arguments"])),
        )
    for pattern in volatile:
        content = pattern.sub("", content)
    return _hash(role.encode(), _encode(content), _encode(message.get("tool_call_id") or ""))


def digest_text(content: Any) -> str:
    """Text, or everything that parts say, as text."""
    if isinstance(content, list):
        parts = ({key: value for key, value in part.items() if key != "where"} for part in content)
        return "".join(part["text"] if part["type"] == "text" else dump_wire_json(part).decode() for part in parts)
    return content or ""


def renderable(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same messages as a tokenizer can take them: lone surrogates become U+FFFD."""
    return [{key: _clean(value) for key, value in message.items()} for message in messages]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return value


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash(*parts: bytes) -> bytes:
    """Of the parts and their borders."""
    state = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
