"""OpenAI Chat Completions.

From:  `POST {base}/chat/completions`, `GET {base}/models`.
To:    canonical requests; `chat.completion` bodies and `chat.completion.chunk` streams.
Holds: refuses by name what cannot be honoured exactly (n, stop, forced tools, response formats); keeps
       unknown fields; accepts null, missing and split contents.
"""

from collections.abc import Mapping
from typing import Any

from environments.gateway.dialects import Answer, BadRequest, Head, Target, What
from environments.gateway.dialects.reading import (
    FREEFORM,
    arguments_text,
    check_choice,
    fold_parts,
    freeform_arguments,
    freeform_input,
    function_tool,
    media_part,
    need_list,
    need_messages,
    need_object,
    refuse_form,
    refuse_stops,
    text_part,
)
from environments.gateway.marks import read_agent, says_retry
from environments.gateway.messages import Message, Request
from environments.text import dump_wire_json

PARAMETERS = (
    "model", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "n", "tool_choice",
    "response_format", "seed", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "logit_bias",
    "parallel_tool_calls", "reasoning_effort",
)  # fmt: skip
READ = {"messages", "tools", "stream", "stream_options", *PARAMETERS}
ROLES = {"developer": "system", "function": "tool"}
MEDIA = {"image_url": "image", "input_audio": "audio", "file": "document"}


class Chat:
    name = "chat"
    keep_alive = b": keep-alive\n\n"

    def routes(self, target: Target) -> What | None:
        path = target.path.removeprefix("/v1")
        if path == "/chat/completions" and target.method == "POST":
            return "complete"
        if target.method != "GET":
            return None
        return "models" if path == "/models" else "model" if path.startswith("/models/") else None

    def read_request(self, body: Any, target: Target) -> Request:
        body = need_object(body, "The body")
        raw_messages = need_messages(body.get("messages"), "messages")
        requested = {name: body[name] for name in PARAMETERS if body.get(name) is not None}
        check_honoured(requested)
        tools, freeform = read_tools(body.get("tools"))
        options = body.get("stream_options")
        return Request(
            dialect=self.name,
            messages=[read_message(message, f"messages[{i}]") for i, message in enumerate(raw_messages)],
            tools=[] if requested.get("tool_choice") == "none" else tools,
            stream=body.get("stream") is True,
            requested=requested,
            unknown={name: value for name, value in body.items() if name not in READ},
            model=str(body.get("model") or ""),
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            agent=read_agent(target.headers),
            is_retry=says_retry(target.headers),
            hints={"freeform": freeform} if freeform else {},
        )

    def whole(self, head: Head, answer: Answer) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": answer.message.get("content") or None}
        if answer.message.get("reasoning"):
            message["reasoning_content"] = answer.message["reasoning"]
        if answer.message.get("tool_calls"):
            message["tool_calls"] = [write_call(head, call) for call in answer.message["tool_calls"]]
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        return dump_wire_json(frame(head, "chat.completion") | {"choices": [choice], "usage": usage(answer)})

    def open_stream(self, head: Head) -> "ChatStream":
        return ChatStream(head)

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes:
        return openai_error(status, message, code=code, param=param)

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        return (
            400,
            "context_length_exceeded",
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{num_prompt_tokens} tokens. Please reduce the length of the messages.",
        )

    def count(self, num_prompt_tokens: int) -> bytes:
        return dump_wire_json({"input_tokens": num_prompt_tokens})

    def models(self, name: str, *, single: bool = False) -> bytes:
        model = {"id": name, "object": "model", "created": 0, "owned_by": "gyre"}
        return dump_wire_json(model if single else {"object": "list", "data": [model]})


class ChatStream:
    def __init__(self, head: Head) -> None:
        self.head = head

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def reasoning(self, text: str) -> bytes:
        return self._chunk({"reasoning_content": text})

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def end(self, answer: Answer) -> bytes:
        pieces = [
            self._chunk({"tool_calls": [{"index": index, **write_call(self.head, call)}]})
            for index, call in enumerate(answer.message.get("tool_calls") or ())
        ]
        pieces.append(self._chunk({}, answer.finish_reason))
        if self.head.include_usage:
            last = frame(self.head, "chat.completion.chunk") | {"choices": [], "usage": usage(answer)}
            pieces.append(event(last))
        return b"".join([*pieces, b"data: [DONE]\n\n"])

    def fail(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(frame(self.head, "chat.completion.chunk") | {"choices": [choice]})


def openai_error(status: int, message: str, *, code: str, param: str | None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return dump_wire_json({"error": {"message": message, "type": kind, "param": param, "code": code}})


def frame(head: Head, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{head.call}", "object": kind, "created": head.created, "model": head.model}


def event(value: Any) -> bytes:
    return b"data: " + dump_wire_json(value) + b"\n\n"


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_sampled_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }


def write_call(head: Head, call: Mapping[str, str]) -> dict[str, Any]:
    if call["name"] in head.hints.get("freeform", ()):
        custom = {"name": call["name"], "input": freeform_input(call["arguments"])}
        return {"id": call["id"], "type": "custom", "custom": custom}
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}


def check_honoured(requested: Mapping[str, Any]) -> None:
    """Sampling is the run's and simply replaces what was asked for; these would change what an answer means."""
    if requested.get("n", 1) != 1:
        raise BadRequest("n must be 1: each answer is one node of the trajectory. Send n requests.", param="n")
    refuse_stops(requested.get("stop"), "stop")
    check_choice(requested.get("tool_choice"), ("auto", "none"))
    refuse_form(requested.get("response_format"), "response_format")


def read_tools(raw: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """(canonical tools, names of those that take free text)"""
    tools, freeform = [], []
    for i, tool in enumerate(need_list(raw, "tools")):
        where = f"tools[{i}]"
        kind = str(need_object(tool, where).get("type", "function"))
        if kind == "custom":
            custom = need_object(tool.get("custom"), f"{where}.custom")
            tools.append(function_tool(custom.get("name"), custom.get("description"), FREEFORM, f"{where}.custom"))
            freeform.append(str(custom["name"]))
        elif kind == "function":
            function = need_object(tool.get("function", tool), f"{where}.function")
            tools.append(
                function_tool(function.get("name"), function.get("description"), function.get("parameters"), where)
            )
        else:
            raise BadRequest(f"{where}.type must be function or custom, not {kind!r}.", param=f"{where}.type")
    return tools, freeform


def read_message(raw: Any, where: str) -> Message:
    if not isinstance(raw, dict) or not isinstance(raw.get("role"), str):
        raise BadRequest(f"{where} must be an object with a role.", param=where)
    role = ROLES.get(raw["role"], raw["role"])
    if role not in ("system", "user", "assistant", "tool"):
        raise BadRequest(f"{where}.role must be system, developer, user, assistant or tool.", param=f"{where}.role")
    message: Message = {"role": role, "content": read_content(raw.get("content"), f"{where}.content")}
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    if role == "assistant" and isinstance(reasoning, str):
        message["reasoning"] = reasoning
    if role == "assistant" and raw.get("tool_calls"):
        message["tool_calls"] = read_calls(raw["tool_calls"], f"{where}.tool_calls")
    if role == "tool":
        message["tool_call_id"] = str(raw.get("tool_call_id") or "")
    if isinstance(raw.get("name"), str):
        message["name"] = raw["name"]
    return message


def read_content(raw: Any, where: str) -> str | list[dict[str, Any]]:
    if raw is None or isinstance(raw, str):
        return raw or ""
    if not isinstance(raw, list):
        raise BadRequest(f"{where} must be text, a list of parts, or null.", param=where)
    return fold_parts([read_part(part, f"{where}[{i}]") for i, part in enumerate(raw)])


def read_part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return text_part(part)
    kind = str(need_object(part, where).get("type"))
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return text_part(text)
    if kind in MEDIA:
        image = part.get("image_url")
        return media_part(MEDIA[kind], where, url=image.get("url") if isinstance(image, dict) else image)
    raise BadRequest(f"{where} is a {kind} part; text and image parts are understood.", param=where)


def read_calls(raw: Any, where: str) -> list[dict[str, str]]:
    calls = []
    for i, call in enumerate(need_list(raw, where)):
        custom = call.get("custom") if isinstance(call, dict) else None
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(custom, dict):
            arguments, given = freeform_arguments(str(custom.get("input") or "")), custom
        elif isinstance(function, dict):
            arguments, given = arguments_text(function.get("arguments")), function
        else:
            raise BadRequest(f"{where}[{i}] must have a function with name and arguments.", param=f"{where}[{i}]")
        calls.append({"id": str(call.get("id") or ""), "name": str(given.get("name") or ""), "arguments": arguments})
    return calls
