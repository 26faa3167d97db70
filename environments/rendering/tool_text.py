"""Tools for models whose chat template knows none: as text, in the `<tool_call>` form most open models were trained on.

From:  chatml.py, for templates that ignore `tools`.
To:    messages without tool fields and reasoning; an answer's reasoning, text and tool calls read back.
Holds: `read_answer(fold_message(...))` gives the message back, arguments in the very characters that were written.
       A call whose name cannot be read leaves the whole answer text; one whose arguments cannot be read keeps them
       as they are, for the harness to refuse.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from environments.rendering.protocol import Message, Tool

THINK, UNTHINK = "<think>", "</think>"
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
INTRODUCTION = (
    "You may call these tools. To call one, write\n<tool_call>\n"
    '{"name": "tool name", "arguments": {"parameter": "value"}}\n</tool_call>\n'
    "and wait for its result. Tools:\n"
)


def describe_tools(tools: Sequence[Tool]) -> str:
    """One JSON object a line, after how to call them."""
    lines = [json.dumps(dict(tool.get("function", tool)), ensure_ascii=False, sort_keys=True) for tool in tools]
    return INTRODUCTION + "\n".join(lines)


def write_tool_call(name: str, arguments: str) -> str:
    """`arguments` is raw text: an object stays as it is written, also a broken one; other text is a JSON string."""
    raw = arguments.strip() or "{}"
    is_object = raw.startswith("{") and "</tool_call>" not in raw
    body = raw if is_object else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {body}}}\n</tool_call>'


def fold_message(message: Message) -> dict[str, Any]:
    """The same message with its reasoning and tool calls written into the text."""
    calls = [write_tool_call(call["name"], call["arguments"]) for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    if calls:
        content = "\n".join([content, *calls] if content else calls)
    if message.get("reasoning"):
        content = f"{THINK}\n{message['reasoning']}\n{UNTHINK}\n\n{content}"
    return {"role": message["role"], "content": content}


def fold_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Messages as plain text ones, as many as before; tools are described in the first system message, else in the
    first message."""
    folded = [fold_message(message) for message in messages]
    if tools and folded:
        content = folded[0]["content"]
        description = describe_tools(tools)
        after_system = folded[0]["role"] == "system"
        folded[0]["content"] = (
            (f"{content}\n\n{description}" if content else description)
            if after_system
            else f"{description}\n\n{content}"
        )
    return folded


def read_answer(text: str) -> dict[str, Any]:
    """The canonical assistant message that an answer's text says."""
    reasoning, body = split_reasoning(text)
    content, calls = read_tool_calls(body)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def split_reasoning(text: str) -> tuple[str, str]:
    """(reasoning, the rest). Reasoning that was never closed is all reasoning."""
    begin = text.lstrip()
    if not begin.startswith(THINK):
        return "", text
    reasoning, closed, rest = begin[len(THINK) :].partition(UNTHINK)
    return reasoning.strip("\n"), rest.lstrip("\n") if closed else ""


def read_tool_calls(text: str) -> tuple[str, list[dict[str, str]]]:
    """(text without its calls, calls). All calls must have a readable name, else there are none and the text is whole."""
    calls: list[dict[str, str]] = []
    for index, match in enumerate(CALL.finditer(text)):
        call = read_call(match[1])
        if call is None:
            return text, []
        digest = hashlib.blake2b(f"{index}:{text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        calls.append({"id": f"call_{digest}", **call})
    return (CALL.sub("", text).strip("\n") if calls else text), calls


def read_call(body: str) -> dict[str, str] | None:
    """{"name": ..., "arguments": ...} with the arguments' own characters; a JSON string is what it says.

    read_call('{"name": "a", "arguments": {"x":1.50}}') -> {"name": "a", "arguments": '{"x":1.50}'}
    """
    fields, broken = scan_object(body)
    name = fields.get("name", (None, ""))[0]
    if not isinstance(name, str) or not name or (broken and "arguments" not in fields):
        return None
    value, raw = fields.get("arguments", ({}, "{}"))
    return {"name": name, "arguments": value if isinstance(value, str) else raw}


DECODER = json.JSONDecoder()
BLANK = re.compile(r"[ \t\r\n]*")


def scan_object(body: str) -> tuple[dict[str, tuple[Any, str]], bool]:
    """({key: (value, its characters)}, whether the object is broken). A broken last value is all the rest, as text."""
    fields: dict[str, tuple[Any, str]] = {}
    if not body.startswith("{"):
        return fields, True
    at, key = 1, ""
    try:
        while body[at := skip_blanks(body, at)] != "}":
            key, at = DECODER.raw_decode(body, at)
            at = skip_blanks(body, at)
            if not isinstance(key, str) or body[at] != ":":
                return fields, True
            start = at = skip_blanks(body, at + 1)
            try:
                value, at = DECODER.raw_decode(body, start)
            except ValueError:
                rest = body[start:].removesuffix("}").rstrip()
                return {**fields, key: (rest, rest)}, True
            fields[key] = (value, body[start:at])
            if body[at := skip_blanks(body, at)] == ",":
                at += 1
            elif body[at] != "}":
                return fields, True
    except (ValueError, IndexError, RecursionError):
        return fields, True
    return fields, bool(body[at + 1 :].strip())


def skip_blanks(text: str, at: int) -> int:
    match = BLANK.match(text, at)
    return match.end() if match else at
