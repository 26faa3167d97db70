"""The canonical message, and the digests by which a request's history is recognised.

From:  dialects build messages; the tree keys its nodes on digests.
To:    {"role", "content", "reasoning"?, "tool_calls"? [{"id", "name", "arguments"}], "tool_call_id"?, "name"?}.
Holds: what harnesses really do to history (design 2.3: shape) gives the same digest, nothing more does.
Never: knows a wire format.

An assistant turn that we sampled is keyed on its call ids and its stripped text, never on argument text, tool names
or reasoning: harnesses rewrite those.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
    content = message.get("content") or ""
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
