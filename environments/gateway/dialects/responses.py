"""OpenAI Responses.

From:  `POST {base}/responses`. (`/responses/compact` and stored responses do not exist here: 404.)
To:    canonical requests; `response` objects and their event streams.
Holds: every event has `type` and a rising `sequence_number`; a reasoning item's `encrypted_content` names our answer.
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
    arguments_object,
    arguments_text,
    check_choice,
    fold_parts,
    freeform_arguments,
    freeform_input,
    function_tool,
    media_part,
    need_list,
    need_object,
    refuse_form,
    seal,
    text_or_empty,
    text_part,
    unseal,
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
SHELL = "local_shell"
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

    def open_stream(self, head: Head) -> "ResponsesStream":
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


class ResponsesStream:
    """Items open and close one after the other: reasoning, message, calls."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.done: list[dict[str, Any]] = []
        self._number = 0
        self._sent: list[str] = []
        self._kind = ""
        """Of the open item: reasoning | message."""

    def begin(self) -> bytes:
        started = response(self.head, status="in_progress", output=[], answer=None)
        return self._event("response.created", response=started) + self._event("response.in_progress", response=started)

    def reasoning(self, text: str) -> bytes:
        opening = b""
        if self._kind != "reasoning":
            opening = self._close() + self._open("reasoning", reasoning_item(self.head, ""))
            part = {"type": "summary_text", "text": ""}
            opening += self._event("response.reasoning_summary_part.added", **self._place("summary_index"), part=part)
        self._sent.append(text)
        place = self._place("summary_index")
        return opening + self._event("response.reasoning_summary_text.delta", **place, delta=text)

    def text(self, text: str) -> bytes:
        opening = b""
        if self._kind != "message":
            opening = self._close() + self._open("message", message_item(self.head, None, "in_progress"))
            part = output_text("")
            opening += self._event("response.content_part.added", **self._place("content_index"), part=part)
        self._sent.append(text)
        place = self._place("content_index")
        return opening + self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def end(self, answer: Answer) -> bytes:
        calls = answer.message.get("tool_calls") or ()
        pieces = []
        if not (calls or self._kind or self.done):
            pieces.append(self.text(""))
        pieces.append(self._close(status(answer)))
        pieces += [self._call(call_item(self.head, index, call)) for index, call in enumerate(calls)]
        state = status(answer)
        last = response(self.head, status=state, output=self.done, answer=answer)
        pieces.append(self._event(f"response.{state}", response=last))
        return b"".join(pieces)

    def fail(self, message: str) -> bytes:
        failed = response(self.head, status="failed", output=self.done, answer=None)
        return self._event("response.failed", response=failed | {"error": {"code": "server_error", "message": message}})

    def _open(self, kind: str, item: dict[str, Any]) -> bytes:
        self._kind, self._sent = kind, []
        return self._event("response.output_item.added", output_index=len(self.done), item=item)

    def _close(self, state: str = "completed") -> bytes:
        text, kind = "".join(self._sent), self._kind
        if not kind:
            return b""
        if kind == "reasoning":
            place = self._place("summary_index")
            item = reasoning_item(self.head, text)
            pieces = self._event("response.reasoning_summary_text.done", **place, text=text)
            part = {"type": "summary_text", "text": text}
            pieces += self._event("response.reasoning_summary_part.done", **place, part=part)
        else:
            place = self._place("content_index")
            item = message_item(self.head, text, state)
            pieces = self._event("response.output_text.done", **place, text=text, logprobs=[])
            pieces += self._event("response.content_part.done", **place, part=output_text(text))
        self._kind = ""
        return pieces + self._finish(item)

    def _call(self, item: dict[str, Any]) -> bytes:
        opened = item | {"status": "in_progress"}
        kind, field = {"function_call": ("function_call_arguments", "arguments")}.get(
            item["type"], ("custom_tool_call_input", "input")
        )
        if field in opened:
            opened[field] = ""
        pieces = self._event("response.output_item.added", output_index=len(self.done), item=opened)
        if field in item:
            place = {"item_id": item["id"], "output_index": len(self.done)}
            pieces += self._event(f"response.{kind}.delta", **place, delta=item[field])
            named = {"name": item["name"]} if kind == "function_call_arguments" else {}
            pieces += self._event(f"response.{kind}.done", **place, **{field: item[field]}, **named)
        return pieces + self._finish(item)

    def _finish(self, item: dict[str, Any]) -> bytes:
        self.done.append(item)
        return self._event("response.output_item.done", output_index=len(self.done) - 1, item=item)

    def _place(self, index: str) -> dict[str, Any]:
        return {"item_id": item_id(self.head, self._kind), "output_index": len(self.done), index: 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + dump_wire_json(value) + b"\n\n"


def status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def response(head: Head, *, status: str, output: list[Any], answer: Answer | None) -> dict[str, Any]:
    """answer: None while there is none yet."""
    return {
        "id": f"resp_{head.call}",
        "object": "response",
        "created_at": head.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": head.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage(answer) if answer else None,
    }


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.num_cached_tokens},
        "output_tokens": answer.num_sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
    }


def item_id(head: Head, kind: str) -> str:
    return {"reasoning": "rs_", "message": "msg_"}[kind] + head.call


def reasoning_item(head: Head, text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}] if text else []
    item = {"id": item_id(head, "reasoning"), "type": "reasoning", "summary": summary}
    return item | ({"encrypted_content": seal(head.call)} if head.hints.get("seals") else {})


def message_item(head: Head, text: str | None, state: str) -> dict[str, Any]:
    return {
        "id": item_id(head, "message"),
        "type": "message",
        "status": state,
        "role": "assistant",
        "content": [] if text is None else [output_text(text)],
    }


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(head: Head, index: int, call: Mapping[str, str]) -> dict[str, Any]:
    """In the form in which the tool was offered."""
    name = call["name"]
    item: dict[str, Any] = {"id": f"fc_{head.call}_{index}", "status": "completed", "call_id": call["id"]}
    if name in head.hints.get("freeform", ()):
        return item | {"type": "custom_tool_call", "name": name, "input": freeform_input(call["arguments"])}
    if name == SHELL and head.hints.get("shell"):
        given = arguments_object(call["arguments"])
        command = given.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else ["sh", "-c", str(command or "")]
        action = {"type": "exec", "command": words, "env": {}}
        action |= {key: given[key] for key in ("timeout_ms", "working_directory") if given.get(key) is not None}
        return item | {"type": "local_shell_call", "action": action}
    space, inner = head.hints.get("spaces", {}).get(name, ("", name))
    item |= {"type": "function_call", "name": inner, "arguments": call["arguments"]}
    return item | ({"namespace": space} if space else {})


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
