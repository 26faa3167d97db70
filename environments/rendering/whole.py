"""Any chat template, rendered in full at each request: exact, never extended, so every turn begins a new branch.

From:  chatml.py for kinds it could not prove; models whose template could not be proven at all.
To:    ids by message; each border lies at a special token that both the shorter and the whole conversation have.
Holds: all ids together are the template's, which may refuse a conversation (RendererError). Text that looks like a special token stays text.
Cost:  one template run a message; quadratic text, so meant for short conversations.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from environments.rendering.frames import Template
from environments.rendering.protocol import Decoder, Message, RendererError, Tool
from environments.rendering.tokens import ModelTokenizer
from environments.rendering.tool_text import read_answer


class WholeRenderer:
    name = "whole"

    def __init__(self, directory: Path, tokenizer: ModelTokenizer, stop_token_ids: Sequence[int]) -> None:
        self._directory = directory
        self._tokenizer = tokenizer
        self.stop_token_ids = tuple(stop_token_ids)

    @cached_property
    def _template(self) -> Template:
        from environments.rendering.template import load_template

        return load_template(self._directory)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        contents, hidden = self._tokenizer.hide_specials([m.get("content") or "" for m in messages])
        safe = [{**m, "content": content} for m, content in zip(messages, contents, strict=True)]
        text = self._apply(safe, tools, False)
        borders = [0, *(self._border(text, safe[:count], tools) for count in range(1, len(safe))), len(text)]
        for index in range(len(borders) - 2, 0, -1):
            borders[index] = min(borders[index], borders[index + 1])
        return [self._tokenizer.encode_template(text[start:end], hidden) for start, end in pairwise(borders)]

    def opener(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        text, opened = self._apply(messages, tools, False), self._apply(messages, tools, True)
        return self._tokenizer.encode_template(opened.removeprefix(text)) if opened.startswith(text) else []

    def extend(
        self,
        tail_ids: Sequence[int],
        answer: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[list[int]] | None:
        return None

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        return read_answer(self._tokenizer.decode(ids, self.stop_token_ids))

    def decoder(self) -> Decoder:
        return self._tokenizer.decoder(self.stop_token_ids)

    def encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode_text(text)

    def _apply(self, messages: Sequence[Message], tools: Sequence[Tool], opened: bool) -> str:
        """Where the template refuses a later system message, it is told as the user's. Raises RendererError."""
        try:
            return self._template(messages, tools, opened)
        except ValueError as refused:
            told = [{**m, "role": "user"} if m["role"] == "system" and i else m for i, m in enumerate(messages)]
            try:
                return self._template(told, tools, opened)
            except ValueError:
                raise RendererError(str(refused)) from refused

    def _border(self, text: str, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """Where the messages after these begin in `text`: a special token, else 0 (all belongs to a later message)."""
        try:
            shorter = self._apply(messages, tools, False)
        except RendererError:
            return 0
        position = common_length(shorter, text)
        while position and not self._tokenizer.starts_special(text, position):
            position -= 1
        return position


def common_length(a: str, b: str) -> int:
    """Characters that both begin with, by bisection (comparing slices is fast)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
