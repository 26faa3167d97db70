"""The `renderers` package, hand-checked per model family, behind our protocol.

From:  models whose family it knows (named `renderers:<family>`, e.g. `renderers:qwen3`).
To:    ids by message; the next turn's ids from a short tail (`bridge_to_next_turn`), None where it cannot prove them.
Holds: a tail gives the same extension as the whole prompt, because a bridge only looks at where the answer ends.
       Its tokenizer reads special tokens in contents as ordinary text, as our own renderers do.
Cost:  0.3 ms a turn with a tail; 0.2 s with a whole prompt of a million tokens.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.rendering.protocol import Decoder, Message, RendererError, Tool
from environments.rendering.tokens import ModelTokenizer

PREFIX = "renderers:"


class LibraryRenderer:
    def __init__(self, name: str, library: Any, tokenizer: ModelTokenizer) -> None:
        """library: a renderer of the package."""
        self.name = name
        self._library = library
        self._tokenizer = tokenizer
        self.stop_token_ids = tuple(library.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        rendered = self._library.render(self._messages(messages), tools=self._tools(tools))
        return split_by_message(rendered.token_ids, rendered.message_indices, len(messages))

    def opener(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        given, before = self._tools(tools), self._messages(messages or [{"role": "user", "content": ""}])
        whole = self._library.render_ids(before, tools=given)
        opened = self._library.render_ids(before, tools=given, add_generation_prompt=True)
        if opened[: len(whole)] != whole:
            raise RendererError(f"{self.name} changes a conversation when it opens an answer; use another renderer.")
        return list(opened[len(whole) :])

    def extend(
        self,
        tail_ids: Sequence[int],
        answer: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[list[int]] | None:
        if not new_messages or any(m["role"] == "assistant" for m in new_messages):
            return None
        opener = self.opener([{"role": "user", "content": ""}], tools)
        prompt, answer_ids = split_at_answer(list(tail_ids), opener)
        bridge = self._library.bridge_to_next_turn(
            prompt, answer_ids, self._messages(new_messages), tools=self._tools(tools)
        )
        known = [*prompt, *answer_ids]
        if bridge is None or list(bridge.token_ids[: len(known)]) != known:
            return None
        added, owners = bridge.token_ids[len(known) :], bridge.message_indices[len(known) :]
        if not opener or list(added[-len(opener) :]) != opener:
            return None
        end = len(added) - len(opener)
        return split_by_message(added[:end], owners[:end], len(new_messages))

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        parsed = self._library.parse_response(list(ids))
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning_content:
            message["reasoning"] = parsed.reasoning_content
        calls = [call for call in parsed.tool_calls if str(call.status) == "ok" and call.name]
        if len(calls) < len(parsed.tool_calls):
            message["content"] = "\n".join(
                [parsed.content, *(c.raw for c in parsed.tool_calls if c not in calls)]
            ).strip()
        if calls:
            message["tool_calls"] = [
                {"id": call.id or f"call_{n}", "name": call.name, "arguments": raw_arguments(call.arguments)}
                for n, call in enumerate(calls)
            ]
        return message

    def decoder(self) -> Decoder:
        return self._tokenizer.decoder(self.stop_token_ids)

    def encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode_text(text)

    def _messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [to_library_message(message) for message in messages]

    def _tools(self, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
        return [dict(tool.get("function", tool)) for tool in tools] or None


def split_at_answer(tail: list[int], opener: list[int]) -> tuple[list[int], list[int]]:
    """(prompt, answer): behind the last opener; where the tail has none it is all answer, and the prompt is one opener."""
    for start in range(len(tail) - len(opener), -1, -1):
        if tail[start : start + len(opener)] == opener:
            return tail[: start + len(opener)], tail[start + len(opener) :]
    return opener, tail


def split_by_message(ids: Sequence[int], owners: Sequence[int], num_messages: int) -> list[list[int]]:
    """owners: message index of each id, -1 for what belongs to none: that precedes the next message, or, after the
    last one, belongs to it. Ids are kept in order."""
    groups: list[list[int]] = [[] for _ in range(num_messages)]
    current, waiting = 0, list[int]()
    for token_id, owner in zip(ids, owners, strict=True):
        waiting.append(token_id)
        if owner >= 0:
            current = max(current, owner)
            groups[current] += waiting
            waiting = []
    if groups:
        groups[current] += waiting
    return groups


def raw_arguments(arguments: Mapping[str, Any] | str | None) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def to_library_message(message: Message) -> dict[str, Any]:
    """Canonical -> the package's OpenAI-like form."""
    out = {"content": "", **{k: v for k, v in message.items() if k not in ("reasoning", "tool_calls")}}
    if message.get("reasoning"):
        out["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        out["tool_calls"] = [
            {"id": c.get("id"), "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in message["tool_calls"]
        ]
    return out


def load_library_renderer(name: str, directory: Path, tokenizer: ModelTokenizer) -> LibraryRenderer:
    """name: `renderers:<family>`. Raises RendererError where the package has no such family."""
    from renderers import config_from_name, create_renderer
    from transformers import AutoTokenizer

    family = name.removeprefix(PREFIX)
    if family in ("default", "auto"):
        raise RendererError("The package's default renderer never extends a conversation. Use `chatml` or `whole`.")
    text_tokenizer = AutoTokenizer.from_pretrained(str(directory), split_special_tokens=True)
    try:
        library = create_renderer(text_tokenizer, config_from_name(family))
    except (ValueError, KeyError) as error:
        raise RendererError(f"The renderers package cannot render {directory} as {family!r}: {error}") from error
    return LibraryRenderer(name, library, tokenizer)


def known_family(model_name: str) -> str | None:
    """The package's family of exactly this hub name, or None."""
    from renderers.base import MODEL_RENDERER_MAP

    return MODEL_RENDERER_MAP.get(model_name)


def families() -> list[str]:
    """Families of the package that extend conversations."""
    from renderers.base import MODEL_RENDERER_MAP

    return sorted(set(MODEL_RENDERER_MAP.values()) - {"default", "auto"})
