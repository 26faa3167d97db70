"""A model's own chat template, as transformers applies it. Imported only where it is needed: transformers is heavy.

From:  frames.py's proofs, whole.py, tests.
To:    text; ValueError where the template refuses a conversation.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.rendering.frames import Template
from environments.rendering.protocol import Message, RendererError, Tool


def files_digest(directory: Path) -> str:
    """Of everything that decides how messages become ids."""
    digest = hashlib.sha256()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"):
        path = directory / name
        digest.update(name.encode() + (path.read_bytes() if path.is_file() else b"-"))
    return digest.hexdigest()


def load_template(directory: Path) -> Template:
    """Raises RendererError where there is none."""
    import jinja2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(directory))
    if not tokenizer.chat_template:
        raise RendererError(f"{directory} has no chat template. Add chat_template.jinja, or use an instruct model.")

    def apply(messages: Sequence[Message], tools: Sequence[Tool], opened: bool) -> str:
        try:
            text = tokenizer.apply_chat_template(
                [to_template_message(m) for m in messages],
                tools=[to_template_tool(tool) for tool in tools] or None,
                add_generation_prompt=opened,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"The chat template refuses this conversation: {error}") from error
        return str(text)

    return apply


def to_template_tool(tool: Tool) -> dict[str, Any]:
    return dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}


def to_template_message(message: Message) -> dict[str, Any]:
    """Canonical -> what templates expect: OpenAI's tool calls with decoded arguments, `reasoning_content`."""
    out = {"content": "", **{k: v for k, v in message.items() if k not in ("reasoning", "tool_calls")}}
    if message.get("reasoning"):
        out["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        out["tool_calls"] = [to_template_call(call) for call in message["tool_calls"]]
    return out


def to_template_call(call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return call
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except ValueError:
        arguments = call["arguments"]
    return {"id": call.get("id"), "type": "function", "function": {"name": call["name"], "arguments": arguments}}
