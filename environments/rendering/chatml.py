"""Our append-only renderer: frames that were proven for a model's own chat template (frames.py).

From:  the frames stored with the Model; its tokenizer.json.
To:    exactly the template's ids, a message at a time, without running the template.
Holds: text in a message that looks like a special token is encoded as ordinary text, so nobody can forge a turn by
       writing "<|im_end|>"; on any other text the ids equal apply_chat_template's. An unproven kind is rendered
       in full by the template (whole.py) and never extended.
Cost:  linear in the new text (0.1 ms for a short turn).
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from environments.rendering.frames import Frames
from environments.rendering.protocol import Decoder, Message, Tool
from environments.rendering.tokens import ModelTokenizer
from environments.rendering.tool_text import fold_tools, read_answer
from environments.rendering.whole import WholeRenderer


class ChatmlRenderer:
    name = "chatml"

    def __init__(self, directory: Path, tokenizer: ModelTokenizer, frames: Frames, stop_token_ids: Sequence[int]):
        self._tokenizer = tokenizer
        self._frames = frames
        closing = tokenizer.encode_template(frames.roles["assistant"][1])
        self._closing = closing
        self.stop_token_ids = tuple(dict.fromkeys([closing[0], *stop_token_ids]))
        self._whole = WholeRenderer(directory, tokenizer, self.stop_token_ids)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        if not self._is_proven(messages, tools):
            return self._whole.render(messages, tools)
        return self._encode(self._fold(messages, tools), self._frames.default_head)

    def opener(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return self._tokenizer.encode_template(self._frames.opener)

    def extend(
        self,
        tail_ids: Sequence[int],
        answer: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[list[int]] | None:
        after = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, *new_messages]
        if not new_messages or not tail_ids or not self._is_proven(after, ()):
            return None
        if tools and "tools" not in self._frames.kinds:
            return None
        ids = self._encode(self._fold(new_messages, ()), "")
        is_closed = tail_ids[-1] == self._closing[0]
        ids[0] = [*(self._closing[1:] if is_closed else self._closing), *ids[0]]
        return ids

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        return read_answer(self._tokenizer.decode(ids, self.stop_token_ids))

    def decoder(self) -> Decoder:
        return self._tokenizer.decoder(self.stop_token_ids)

    def encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode_text(text)

    def _fold(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
        return fold_tools(messages, tools) if self._frames.tools == "folded" else messages

    def _encode(self, messages: Sequence[Message], head: str) -> list[list[int]]:
        contents, hidden = self._tokenizer.hide_specials([m.get("content") or "" for m in messages])
        ids = []
        for index, (message, content) in enumerate(zip(messages, contents, strict=True)):
            before, after = self._frames.roles[message["role"]]
            start = head if index == 0 and message["role"] != "system" else ""
            ids.append(self._tokenizer.encode_template(start + before + content + after, hidden))
        return ids

    def _is_proven(self, messages: Sequence[Message], tools: Sequence[Tool]) -> bool:
        roles = [m["role"] for m in messages]
        if not set(roles) <= set(self._frames.roles):
            return False
        if self._frames.tools == "native" and (
            tools or any(m.get("tool_calls") or m.get("reasoning") for m in messages)
        ):
            return False
        return needed_kinds(roles) <= set(self._frames.kinds)


def needed_kinds(roles: Sequence[str]) -> set[str]:
    """Kinds beyond system? (user assistant)* that a conversation with these roles has."""
    kinds = set()
    if "tool" in roles:
        kinds.add("tool")
    if "system" in roles[1:]:
        kinds.add("later_system")
    spoken = [role for role in roles if role in ("user", "assistant")]
    starts_late = bool(spoken) and spoken[0] != "user"
    if starts_late or any(a == b and a != "tool" for a, b in pairwise(roles)):
        kinds.add("repeated")
    return kinds
