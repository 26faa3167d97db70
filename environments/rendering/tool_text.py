"""Tools for models whose chat template knows none: as text, in the `<tool_call>` form most open models were trained on.

From:  chatml.py, for templates that ignore `tools`.
To:    messages without tool fields, and tool calls read back from an answer.
Holds: `read_tool_calls(write_tool_call(...))` gives the calls back. An answer that cannot be read stays text, whole.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.rendering.protocol import Message, Tool

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
    """`arguments` is raw JSON text; anything else is kept as a JSON string."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        value = arguments
    body = json.dumps({"name": name, "arguments": value}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def fold_message(message: Message) -> dict[str, Any]:
    """The same message with its tool calls written into the text."""
    calls = [write_tool_call(call["name"], call["arguments"]) for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    return {
        "role": message["role"],
        "content": "\n".join([content, *calls] if content else calls) if calls else content,
    }


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


def read_tool_calls(text: str) -> tuple[str, list[dict[str, str]]]:
    """(text without its calls, calls). All calls must be readable, else there are none and the text is whole."""
    calls: list[dict[str, str]] = []
    for index, match in enumerate(CALL.finditer(text)):
        call = read_call(match[1])
        if call is None:
            return text, []
        digest = hashlib.blake2b(f"{index}:{text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        calls.append({"id": f"call_{digest}", **call})
    return (CALL.sub("", text).strip("\n") if calls else text), calls


def read_call(body: str) -> dict[str, str] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": value["name"], "arguments": raw}
