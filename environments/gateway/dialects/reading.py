"""What the dialects share when they read: checked shapes, parts, tools, turns, and the mark in sealed reasoning.

From:  chat.py, responses.py, messages.py, gemini.py.
To:    canonical pieces; BadRequest names the field.
Holds: equal conversations of two dialects give equal canonical messages and tools.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.gateway.dialects import BadRequest
from environments.gateway.messages import Message
from environments.text import dump_wire_json, load_json

SEAL = re.compile(r"gyre:([0-9a-f]{32})")
MAX_SEAL_CHARS = 200
FREEFORM = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input, as free text."}},
    "required": ["input"],
}
"""Parameters by which the model is offered a tool that takes free text."""


def need_object(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where} must be an object.", param=where)
    return raw


def need_list(raw: Any, where: str) -> list[Any]:
    """None is an empty list."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise BadRequest(f"{where} must be a list.", param=where)
    return raw


def need_messages(raw: Any, where: str) -> list[Any]:
    if not isinstance(raw, list) or not raw:
        raise BadRequest(f"{where} must be a list with at least one message.", param=where)
    return raw


def text_or_empty(raw: Any, where: str) -> str:
    if raw is None:
        return ""
    if not isinstance(raw, str):
        raise BadRequest(f"{where} must be text.", param=where)
    return raw


def media_part(kind: str, where: str, **more: Any) -> dict[str, Any]:
    """A part that is no text. Where it stood is kept, so that a refusal can name it."""
    return {"type": kind, "where": where, **more}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def fold_parts(parts: Sequence[Mapping[str, Any]], *, glue: str = "") -> str | list[dict[str, Any]]:
    """Text where all parts are text, else the parts. glue: between two texts that are not parted by white space."""
    if any(part["type"] != "text" for part in parts):
        return [dict(part) for part in parts]
    text = ""
    for part in parts:
        more = part["text"]
        text += glue + more if text and more and not text[-1].isspace() and not more[0].isspace() else more
    return text


def arguments_text(arguments: Any) -> str:
    """Raw text of a call's arguments; an object is written as JSON."""
    return arguments if isinstance(arguments, str) else dump_wire_json(arguments or {}).decode()


def arguments_object(arguments: str) -> dict[str, Any]:
    """For wires that carry an object: `{}` where the model wrote none."""
    try:
        value = load_json(arguments.encode("utf-8", "surrogatepass"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def function_tool(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """The canonical tool; what a wire says beyond this (strict, cache marks) does not reach the model."""
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{where}.name must be text.", param=f"{where}.name")
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str) and description:
        function["description"] = description
    if isinstance(parameters, dict):
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def freeform_input(arguments: str) -> str:
    """What a model wrote for a tool that takes free text: the `input` of its object, else all of it."""
    value = arguments_object(arguments).get("input")
    return value if isinstance(value, str) else arguments


def freeform_arguments(text: str) -> str:
    return dump_wire_json({"input": text}).decode()


def seal(call: str) -> str:
    """An opaque text that names our answer; clients send it back with its reasoning. (Base64: one wire wants that.)"""
    return base64.b64encode(f"gyre:{call}".encode()).decode()


def unseal(sealed: Any) -> str:
    """The call that a sealed text names; "" where it is not ours."""
    if not isinstance(sealed, str) or not sealed or len(sealed) > MAX_SEAL_CHARS:
        return ""
    try:
        match = SEAL.fullmatch(base64.b64decode(sealed, altchars=b"-_", validate=False).decode("latin-1"))
    except (binascii.Error, ValueError):
        return ""
    return match[1] if match else ""


class Turns:
    """Pieces of assistant turns (reasoning, text, calls) as they follow each other on the wire -> messages.

    One answer of ours has at most one reasoning, one text and then calls, in this order; a piece that cannot follow
    begins the next turn. joins_text: wires that echo a streamed text in pieces.
    """

    def __init__(self, *, joins_text: bool = False) -> None:
        self.messages: list[Message] = []
        self._joins_text = joins_text
        self._turn: Message | None = None
        self._has_text = False

    def close(self) -> None:
        self._turn = None

    def add(self, message: Message) -> None:
        """A message of somebody else."""
        self._turn = None
        self.messages.append(message)

    def reasoning(self, text: str, call: str) -> None:
        turn = self._turn
        if turn is None or self._has_text or turn.get("tool_calls") or ("reasoning" in turn and not self._joins_text):
            turn = self._open()
        if text or "reasoning" not in turn:
            turn["reasoning"] = turn.get("reasoning", "") + text
        self.mark(call)

    def mark(self, call: str) -> None:
        """The open turn is (part of) the answer of this call."""
        if call and self._turn is not None:
            self._turn["reasoning_of"] = call

    def text(self, content: str | list[dict[str, Any]]) -> None:
        turn = self._turn
        if turn is None or turn.get("tool_calls") or (self._has_text and not self._joins_text):
            turn = self._open()
        known = turn["content"]
        turn["content"] = known + content if isinstance(known, str) and isinstance(content, str) else content
        self._has_text = True

    def call(self, call_id: str, name: str, arguments: str) -> None:
        turn = self._turn or self._open()
        turn.setdefault("tool_calls", []).append({"id": call_id, "name": name, "arguments": arguments})

    def _open(self) -> Message:
        self._turn = {"role": "assistant", "content": ""}
        self._has_text = False
        self.messages.append(self._turn)
        return self._turn


def check_choice(choice: Any, allowed: Sequence[str], where: str = "tool_choice") -> None:
    """A forced call would not be sampled from the policy."""
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind is not None and kind not in allowed:
        raise BadRequest(f"{where} must be {' or '.join(allowed)}: a forced call would not be sampled.", param=where)


def refuse_stops(stops: Any, where: str) -> None:
    if stops:
        raise BadRequest(f"{where} is not supported: answers end at the model's own stop tokens. Omit it.", param=where)


def refuse_form(form: Any, where: str) -> None:
    if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
        raise BadRequest(f"{where} must be text: constrained answers are not the policy's.", param=where)
