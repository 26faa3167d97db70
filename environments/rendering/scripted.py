"""A renderer without model files, for tests and the scripted engine: a token is a byte.

ids 0..255 are bytes; 256 begins a message, 257 ends one, 258 begins an assistant message and is the opener.
Same rules as chatml.py: append-only, text cannot forge a border.

Worked example: [{"role": "user", "content": "hi"}] -> [[256, *b"user\\n", *b"hi", 257]]; opener [258].
"""

import codecs
from collections.abc import Sequence
from typing import Any

from environments.rendering.protocol import Message, Tool
from environments.rendering.tool_text import fold_tools, read_answer

BEGIN, END, ANSWER = 256, 257, 258
VOCABULARY = 259


class ScriptedRenderer:
    name: str = "scripted"
    stop_token_ids: tuple[int, ...] = (END,)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        return [self._encode(message) for message in fold_tools(messages, tools)]

    def opener(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return [ANSWER]

    def extend(
        self,
        tail_ids: Sequence[int],
        answer: Message,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> list[list[int]] | None:
        if not new_messages or not tail_ids:
            return None
        ids = self.render(new_messages, ())
        if tail_ids[-1] != END:
            ids[0].insert(0, END)
        return ids

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        decoder = self.decoder()
        text = "".join(map(decoder.push, ids)) + decoder.flush()
        return read_answer(text)

    def decoder(self) -> "ScriptedDecoder":
        return ScriptedDecoder()

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def _encode(self, message: Message) -> list[int]:
        head = [ANSWER] if message["role"] == "assistant" else [BEGIN, *message["role"].encode(), ord("\n")]
        return [*head, *self.encode_text(message.get("content") or ""), END]


class ScriptedDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(bytes([token_id])) if token_id < BEGIN else ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)
