"""OpenAI Responses.

From:  `POST {base}/responses`. (`/responses/compact` and stored responses do not exist here: 404.)
To:    canonical requests; responses_answers.py writes the answers.
Holds: a reasoning item's `encrypted_content` names our answer.
       Freeform, namespaced and local_shell tools are offered to the model as functions and come back in their own
       form. Tools that the provider itself would run (web search) are left out, and kept on the call's record.
"""

from collections.abc import Mapping
from typing import Any

from environments.gateway.dialects import Answer, BadRequest, Head, Target, What
from environments.gateway.dialects.chat import openai_error
from environments.gateway.dialects.reading import (
    FREEFORM,
    Turns,
    arguments_text,
    check_choice,
    fold_parts,
    freeform_arguments,
    function_tool,
    media_part,
    need_list,
    need_object,
    refuse_form,
    text_or_empty,
    text_part,
    unseal,
)
from environments.gateway.dialects.responses_answers import (
    SHELL,
    ResponsesStream,
    call_item,
    message_item,
    reasoning_item,
    response,
    status,
)
from environments.gateway.marks import read_agent, says_retry
from environments.gateway.messages import Message, Request
from environments.text import dump_wire_json

PARAMETERS = (
    "model", "temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "reasoning", "text",
    "truncation", "top_logprobs", "max_tool_calls",
)  # fmt: skip
READ = {"input", "instructions", "tools", "stream", "stream_options", "include", *PARAMETERS}
ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
STATEFUL = ("previous_response_id", "conversation", "background", "prompt")
"""Fields that mean a history, or a job, which the provider keeps."""
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
MEDIA = {"input_image": "image", "input_file": "document", "input_audio": "audio"}
HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "computer",
    "computer_use_preview", "tool_search",
)  # fmt: skip
"""Tools that run at the provider. Their items in a history are left out too."""
SHELL_PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "Program and arguments."},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}


class Responses:
    name = "responses"
    keep_alive = b": keep-alive\n\n"

    def routes(self, target: Target) -> What | None:
        path = target.path.removeprefix("/v1")
        if target.method != "POST":
            return None
        return {"/responses": "complete", "/responses/input_tokens": "count"}.get(path)  # type: ignore[return-value]

    def read_request(self, body: Any, target: Target) -> Request:
        body = need_object(body, "The body")
        requested = {name: body[name] for name in PARAMETERS if body.get(name) is not None}
        check_honoured(body)
        tools = Tools()
        tools.read(need_list(body.get("tools"), "tools"), "tools")
        history = History()
        if instructions := body.get("instructions"):
            history.instruct(instructions)
        history.read(body.get("input"))
        include = need_list(body.get("include"), "include")
        left_out = {"left_out_tools": tools.left_out} if tools.left_out else {}
        left_out |= {"left_out_items": history.left_out} if history.left_out else {}
        return Request(
            dialect=self.name,
            messages=history.turns.messages,
            tools=[] if requested.get("tool_choice") == "none" else tools.tools,
            stream=body.get("stream") is True,
            requested=requested,
            unknown={name: value for name, value in body.items() if name not in READ} | left_out,
            model=str(body.get("model") or ""),
            agent=read_agent(target.headers),
            is_retry=says_retry(target.headers),
            hints=tools.hints | {"seals": "reasoning.encrypted_content" in include},
        )

    def whole(self, head: Head, answer: Answer) -> bytes:
        items = []
        if answer.message.get("reasoning"):
            items.append(reasoning_item(head, answer.message["reasoning"]))
        calls = answer.message.get("tool_calls") or ()
        if answer.message.get("content") or not (calls or items):
            items.append(message_item(head, answer.message.get("content") or "", status(answer)))
        items += [call_item(head, index, call) for index, call in enumerate(calls)]
        return dump_wire_json(response(head, status=status(answer), output=items, answer=answer))

    def open_stream(self, head: Head) -> ResponsesStream:
        return ResponsesStream(head)

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes:
        return openai_error(status, message, code=code, param=param)

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        return (
            400,
            "context_length_exceeded",
            "Your input exceeds the context window of this model. Please adjust your input and try again. "
            f"({num_prompt_tokens} tokens of at most {limit})",
        )

    def count(self, num_prompt_tokens: int) -> bytes:
        return dump_wire_json({"object": "response.input_tokens", "input_tokens": num_prompt_tokens})

    def models(self, name: str, *, single: bool = False) -> bytes:
        raise NotImplementedError("GET /models is answered by the Chat dialect, which has the same list.")


def check_honoured(body: Mapping[str, Any]) -> None:
    for name in STATEFUL:
        if body.get(name):
            raise BadRequest(f"{name} is not supported: nothing is stored here. Send the whole input.", param=name)
    check_choice(body.get("tool_choice"), ("auto", "none"))
    text = body.get("text")
    refuse_form(text.get("format") if isinstance(text, dict) else None, "text.format")


class Tools:
    """Tools as the wire offers them -> canonical ones, and how their calls must look."""

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.hints: dict[str, Any] = {}

    def read(self, raw: list[Any], where: str, space: str = "") -> None:
        for i, tool in enumerate(raw):
            self._read_one(need_object(tool, f"{where}[{i}]"), f"{where}[{i}]", space)

    def _read_one(self, tool: dict[str, Any], where: str, space: str) -> None:
        kind, name = str(tool.get("type") or "function"), tool.get("name")
        if kind == "namespace":
            inner = text_or_empty(name, f"{where}.name")
            self.read(need_list(tool.get("tools"), f"{where}.tools"), f"{where}.tools", inner)
        elif kind == "function":
            self._add(tool, tool.get("parameters"), where, space)
        elif kind == "custom":
            self._add(tool, FREEFORM, where, "")
            self.hints.setdefault("freeform", []).append(name)
        elif kind == SHELL:
            self._add({"name": SHELL, "description": "Run a program."}, SHELL_PARAMETERS, where, "")
            self.hints["shell"] = True
        elif kind.startswith(HOSTED):
            self.left_out.append(kind)
        else:
            raise BadRequest(
                f"{where}.type {kind!r} is not known; function, custom, namespace and local_shell are.",
                param=f"{where}.type",
            )

    def _add(self, tool: Mapping[str, Any], parameters: Any, where: str, space: str) -> None:
        inner = tool.get("name")
        name = f"{space}.{inner}" if space and isinstance(inner, str) else inner
        self.tools.append(function_tool(name, tool.get("description"), parameters, where))
        if space:
            self.hints.setdefault("spaces", {})[name] = (space, inner)


class History:
    """Input items -> canonical messages."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.left_out: list[str] = []

    def instruct(self, instructions: Any) -> None:
        if isinstance(instructions, list):
            self.read(instructions, "instructions")
            return
        self.turns.add({"role": "system", "content": text_or_empty(instructions, "instructions")})

    def read(self, raw: Any, where: str = "input") -> None:
        if isinstance(raw, str):
            self.turns.add({"role": "user", "content": raw})
            return
        if not isinstance(raw, list) or not raw:
            raise BadRequest(f"{where} must be text or a list with at least one item.", param=where)
        for i, item in enumerate(raw):
            self._read_item(need_object(item, f"{where}[{i}]"), f"{where}[{i}]")
        if not self.turns.messages:
            raise BadRequest(f"{where} has no message.", param=where)

    def _read_item(self, item: dict[str, Any], where: str) -> None:
        kind = str(item.get("type") or "message")
        if kind == "message":
            self._read_message(item, where)
        elif kind == "reasoning":
            texts = need_list(item.get("content"), f"{where}.content") or need_list(item.get("summary"), where)
            parts = [read_part(part, f"{where}[{i}]") for i, part in enumerate(texts)]
            text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
            self.turns.reasoning(text, unseal(item.get("encrypted_content")))
        elif kind.endswith("_call_output"):
            self._read_output(kind, item, where)
        elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
            self._read_call(kind, item, where)
        elif kind.startswith(HOSTED) or kind in ("compaction", "compaction_trigger", "ghost_snapshot"):
            self.left_out.append(kind)
        elif kind == "item_reference":
            raise BadRequest(f"{where} refers to a stored item; nothing is stored here. Send the item.", param=where)
        else:
            raise BadRequest(f"{where}.type {kind!r} is not known.", param=f"{where}.type")

    def _read_message(self, item: dict[str, Any], where: str) -> None:
        role = ROLES.get(str(item.get("role")))
        if role is None:
            raise BadRequest(f"{where}.role must be system, developer, user or assistant.", param=f"{where}.role")
        if role == "assistant":
            self.turns.text(read_content(item.get("content"), f"{where}.content", glue=""))
        else:
            content = read_content(item.get("content"), f"{where}.content", glue="\n")
            self.turns.add({"role": role, "content": content})

    def _read_call(self, kind: str, item: dict[str, Any], where: str) -> None:
        call_id = str(item.get("call_id") or item.get("id") or "")
        name = text_or_empty(item.get("name"), f"{where}.name")
        if kind == "custom_tool_call":
            arguments = freeform_arguments(text_or_empty(item.get("input"), f"{where}.input"))
        elif kind == "local_shell_call":
            action = need_object(item.get("action"), f"{where}.action")
            kept = ("command", "working_directory", "timeout_ms")
            name, arguments = SHELL, arguments_text({key: action[key] for key in kept if action.get(key) is not None})
        else:
            arguments = arguments_text(item.get("arguments"))
            name = f"{item['namespace']}.{name}" if item.get("namespace") else name
        self.turns.call(call_id, name, arguments)

    def _read_output(self, kind: str, item: dict[str, Any], where: str) -> None:
        if kind.startswith(HOSTED):
            self.left_out.append(kind)
            return
        output = item.get("output")
        content = (
            read_content(output, f"{where}.output", glue="\n")
            if output is None or isinstance(output, str | list)
            else dump_wire_json(output).decode()
        )
        message: Message = {"role": "tool", "content": content}
        self.turns.add(message | {"tool_call_id": str(item.get("call_id") or item.get("id") or "")})


def read_content(raw: Any, where: str, *, glue: str) -> str | list[dict[str, Any]]:
    if raw is None or isinstance(raw, str):
        return raw or ""
    return fold_parts([read_part(part, f"{where}[{i}]") for i, part in enumerate(need_list(raw, where))], glue=glue)


def read_part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return text_part(part)
    kind = str(need_object(part, where).get("type"))
    text = part.get("text", part.get("refusal"))
    if kind in TEXTS and isinstance(text, str):
        return text_part(text)
    if kind in MEDIA:
        return media_part(MEDIA[kind], where, url=part.get("image_url"))
    raise BadRequest(f"{where} is a {kind} part; text and image parts are understood.", param=where)
