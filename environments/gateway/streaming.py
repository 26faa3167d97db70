"""What of an answer can be sent before it is complete, and its bytes.

From:  delivery.py, one call of `token` a sampled id.
To:    the dialect's AnswerStream.
Holds: no borders of engine chunks show; reasoning goes before text, both in the words of the renderer's own parse;
       both are sent up to a possible tool opener, tool calls only from the committed answer.
Cost:  linear in the answer.
"""

from collections.abc import Callable
from typing import Literal

from environments.gateway.dialects import Dialect, Head
from environments.gateway.open_rollout import LiveCall, OpenRollout

TOOL_OPENERS = ("<tool_call>", "<function=", "<|tool_call", "[TOOL_CALLS]", "<\uff5ctool")
LONGEST_OPENER = max(map(len, TOOL_OPENERS))
THINK, UNTHINK = "<think>", "</think>"
HELD = (*TOOL_OPENERS, UNTHINK)

Piece = tuple[Literal["reasoning", "text"], str]


class StreamText:
    """Splits an answer's text, as it comes, into what is certain.

    Not sent: anything from a possible tool opener on, trailing blanks (a parser may strip them). push("I see. <tool")
    gives [("text", "I see.")]; push("_call>...") gives []. Reasoning that is still open is sent where the renderer
    calls it reasoning already; else when it closes.
    """

    def __init__(self, split: Callable[[], str | None], *, is_thinking: bool = False) -> None:
        """split: the reasoning of what was sampled so far; None where the renderer leaves it in the text.
        is_thinking: the opener has begun the reasoning."""
        self._split = split
        self._rest = THINK if is_thinking else ""
        """Not sent yet; while thinking all of it, from the opener on."""
        self._searched = 0
        self._state: Literal["start", "thinking", "text", "closed"] = "start"
        self._opened_by_prompt = is_thinking
        self._strips_newlines = False
        self._sent: list[str] = []
        self._thought: int | None = None
        """Place in `_rest` up to which open reasoning was sent; None before it is known how the renderer reads it."""
        self._streams_thought = True
        self._sent_reasoning: list[str] = []

    def push(self, delta: str) -> list[Piece]:
        self._rest += delta
        pieces: list[Piece] = []
        if self._state == "start":
            self._begin()
        if self._state == "thinking":
            pieces += self._think()
        if self._state == "text":
            pieces += self._certain()
        return pieces

    def _begin(self) -> None:
        begin = self._rest.lstrip()
        if begin.startswith(THINK):
            self._state = "thinking"
        elif not THINK.startswith(begin):
            self._state = "text"

    def _think(self) -> list[Piece]:
        at = self._rest.find(UNTHINK, max(0, self._searched - len(UNTHINK)))
        self._searched = len(self._rest)
        if at < 0:
            return self._open_thought()
        self._state = "text"
        reasoning = self._split()
        if reasoning is None:
            self._rest = self._rest[len(THINK) :] if self._opened_by_prompt else self._rest
            return []
        self._rest = self._rest[at + len(UNTHINK) :]
        self._strips_newlines = True
        return self._thought_pieces(self.rest_of_reasoning(reasoning))

    def _open_thought(self) -> list[Piece]:
        """What of the open reasoning can go out: it is in the parse already, and nothing after it can change it."""
        if self._thought is None and self._streams_thought:
            self._find_thought()
        if self._thought is None or not self._streams_thought:
            return []
        new = self._rest[self._thought :]
        if openers := [at for opener in TOOL_OPENERS if (at := new.find(opener)) >= 0]:
            new, self._streams_thought = new[: min(openers)], False
        else:
            new = new[: len(new) - held_length(new)]
        new = new.rstrip()
        self._thought += len(new)
        return self._thought_pieces(new)

    def _find_thought(self) -> None:
        """Where the renderer lets the reasoning begin; asked once, at its first word."""
        begin = self._rest.index(THINK) + len(THINK)
        word = self._rest[begin:].lstrip()
        if not word or UNTHINK.startswith(word):
            return
        reasoning = self._split() or ""
        self._thought = begin + self._rest[begin:].find(reasoning) if reasoning else None
        self._streams_thought = bool(reasoning) and self._rest[begin : self._thought].strip() == ""

    def _thought_pieces(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._sent_reasoning.append(text)
        return [("reasoning", text)]

    def rest_of_reasoning(self, reasoning: str) -> str:
        """What of the final reasoning was not sent yet; nothing where the renderer reads it otherwise after all."""
        sent = "".join(self._sent_reasoning)
        return reasoning[len(sent) :] if reasoning.startswith(sent) else ""

    def _certain(self) -> list[Piece]:
        if self._strips_newlines and not self._sent:
            self._rest = self._rest.lstrip("\n")
        may_open = "<" in self._rest or "[" in self._rest
        openers = [at for opener in TOOL_OPENERS if (at := self._rest.find(opener)) >= 0] if may_open else []
        if openers:
            certain, self._state = self._rest[: min(openers)], "closed"
        else:
            certain = self._rest[: len(self._rest) - held_length(self._rest)] if may_open else self._rest
        certain = certain.rstrip()
        if not certain:
            return []
        self._rest = self._rest[len(certain) :]
        self._sent.append(certain)
        return [("text", certain)]

    def rest(self, content: str) -> str:
        """What of the final content was not sent yet."""
        sent = "".join(self._sent)
        if content.startswith(sent):
            return content[len(sent) :]
        stripped, sent = content.strip(), sent.strip()
        return stripped[len(sent) :] if stripped.startswith(sent) else ""


def held_length(text: str) -> int:
    """Length of the longest end of `text` that could begin a tool opener or end the reasoning."""
    end = text[1 - LONGEST_OPENER :]
    return next((n for n in range(len(end), 0, -1) if any(o.startswith(end[-n:]) for o in HELD)), 0)


class StreamEncoder:
    """Bytes of a streamed answer."""

    def __init__(self, dialect: Dialect, head: Head, rollout: OpenRollout, call: LiveCall) -> None:
        self._renderer = rollout.renderer
        self._stream = dialect.open_stream(head)
        self._decoder = rollout.renderer.decoder()
        self._ids: list[int] = []
        self._text = StreamText(self._split, is_thinking=opens_thinking(rollout, call))

    def begin(self) -> bytes:
        return self._stream.begin()

    def token(self, token_id: int) -> bytes:
        self._ids.append(token_id)
        text = self._decoder.push(token_id)
        return b"".join(self._write(piece) for piece in self._text.push(text)) if text else b""

    def end(self, call: LiveCall) -> bytes:
        assert call.answer
        message, pieces = call.answer.message, []
        if thought := self._text.rest_of_reasoning(message.get("reasoning") or ""):
            pieces.append(self._stream.reasoning(thought))
        if rest := self._text.rest(message.get("content") or ""):
            pieces.append(self._stream.text(rest))
        return b"".join([*pieces, self._stream.end(call.answer)])

    def fail(self, message: str) -> bytes:
        return self._stream.fail(message)

    def _write(self, piece: Piece) -> bytes:
        kind, text = piece
        return self._stream.reasoning(text) if kind == "reasoning" else self._stream.text(text)

    def _split(self) -> str | None:
        message = self._renderer.parse(self._ids)
        if UNTHINK in (message.get("content") or ""):
            return None
        return message.get("reasoning") or ""


def opens_thinking(rollout: OpenRollout, call: LiveCall) -> bool:
    """Whether the template's own generation prompt begins the reasoning."""
    if not call.opener:
        return False
    decoder = rollout.renderer.decoder()
    text = "".join(map(decoder.push, call.opener)) + decoder.flush()
    return text.rstrip().endswith(THINK)
