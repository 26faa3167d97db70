"""OpenAI Chat Completions.

From:  `POST {base}/chat/completions`, `GET {base}/models`.
To:    canonical requests; `chat.completion` bodies and `chat.completion.chunk` streams.
Holds: refuses by name what cannot be honoured exactly (n, stop, forced tools, response formats, images); keeps
       unknown fields; accepts null, missing and split contents.
"""

from collections.abc import Mapping
from typing import Any

from environments.gateway.dialects import Answer, BadRequest, Head
from environments.gateway.messages import Message, Request
from environments.text import dump_wire_json

PARAMETERS = (
    "model", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "n", "tool_choice",
    "response_format", "seed", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "logit_bias",
    "parallel_tool_calls", "reasoning_effort",
)  # fmt: skip
READ = {"messages", "tools", "stream", "stream_options", *PARAMETERS}
ROLES = {"developer": "system", "function": "tool"}
AGENT_HEADERS = ("x-claude-code-agent-id", "x-gyre-agent")


class Chat:
    name = "chat"
    keep_alive = b": keep-alive\n\n"

    def routes(self, method: str, path: str) -> str | None:
        path = path.removeprefix("/v1")
        if path == "/chat/completions" and method == "POST":
            return "complete"
        return "models" if path == "/models" and method == "GET" else None

    def read_request(self, body: Any, headers: Mapping[str, str]) -> Request:
        if not isinstance(body, dict):
            raise BadRequest("The body must be a JSON object.")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages must be a list with at least one message.", param="messages")
        tools = body.get("tools") or []
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise BadRequest("tools must be a list of objects.", param="tools")
        requested = {name: body[name] for name in PARAMETERS if body.get(name) is not None}
        check_honoured(requested)
        options = body.get("stream_options")
        return Request(
            dialect=self.name,
            messages=[read_message(message, f"messages[{i}]") for i, message in enumerate(messages)],
            tools=[] if requested.get("tool_choice") == "none" else tools,
            stream=body.get("stream") is True,
            requested=requested,
            unknown={name: value for name, value in body.items() if name not in READ},
            model=str(body.get("model") or ""),
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
            agent=next((headers[name] for name in AGENT_HEADERS if name in headers), ""),
            is_retry=headers.get("x-stainless-retry-count", "0") not in ("0", ""),
        )

    def whole(self, head: Head, answer: Answer) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": answer.message.get("content") or None}
        if answer.message.get("reasoning"):
            message["reasoning_content"] = answer.message["reasoning"]
        if answer.message.get("tool_calls"):
            message["tool_calls"] = [write_call(call) for call in answer.message["tool_calls"]]
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        return dump_wire_json(self._frame(head, "chat.completion") | {"choices": [choice], "usage": usage(answer)})

    def stream_begin(self, head: Head) -> bytes:
        return self._chunk(head, {"role": "assistant", "content": ""})

    def stream_reasoning(self, head: Head, text: str) -> bytes:
        return self._chunk(head, {"reasoning_content": text})

    def stream_text(self, head: Head, text: str) -> bytes:
        return self._chunk(head, {"content": text})

    def stream_end(self, head: Head, answer: Answer) -> bytes:
        pieces = [
            self._chunk(head, {"tool_calls": [{"index": index, **write_call(call)}]})
            for index, call in enumerate(answer.message.get("tool_calls") or ())
        ]
        pieces.append(self._chunk(head, {}, answer.finish_reason))
        if head.include_usage:
            pieces.append(event(self._frame(head, "chat.completion.chunk") | {"choices": [], "usage": usage(answer)}))
        return b"".join([*pieces, b"data: [DONE]\n\n"])

    def stream_error(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return dump_wire_json({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        return (
            400,
            "context_length_exceeded",
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{num_prompt_tokens} tokens. Please reduce the length of the messages.",
        )

    def models(self, name: str) -> bytes:
        return dump_wire_json(
            {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "gyre"}]}
        )

    def _frame(self, head: Head, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{head.call}", "object": kind, "created": head.created, "model": head.model}

    def _chunk(self, head: Head, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event(self._frame(head, "chat.completion.chunk") | {"choices": [choice]})


def event(value: Any) -> bytes:
    return b"data: " + dump_wire_json(value) + b"\n\n"


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_sampled_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }


def write_call(call: Mapping[str, str]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}


def check_honoured(requested: Mapping[str, Any]) -> None:
    """Sampling is the run's and simply replaces what was asked for; these would change what an answer means."""
    if requested.get("n", 1) != 1:
        raise BadRequest("n must be 1: each answer is one node of the trajectory. Send n requests.", param="n")
    if requested.get("stop"):
        raise BadRequest("stop is not supported: answers end at the model's own stop tokens. Omit it.", param="stop")
    if requested.get("tool_choice", "auto") not in ("auto", "none"):
        raise BadRequest("tool_choice must be auto or none: a forced call would not be sampled.", param="tool_choice")
    form = requested.get("response_format")
    if form and not (isinstance(form, dict) and form.get("type") == "text"):
        raise BadRequest(
            "response_format must be text: constrained answers are not the policy's.", param="response_format"
        )


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


def read_content(raw: Any, where: str) -> str:
    if raw is None or isinstance(raw, str):
        return raw or ""
    if not isinstance(raw, list):
        raise BadRequest(f"{where} must be text, a list of text parts, or null.", param=where)
    return "".join(read_part(part, f"{where}[{i}]") for i, part in enumerate(raw))


def read_part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise BadRequest(f"{where} is a {kind} part; only text parts are supported.", param=where)
    return text


def read_calls(raw: Any, where: str) -> list[dict[str, str]]:
    if not isinstance(raw, list):
        raise BadRequest(f"{where} must be a list.", param=where)
    calls = []
    for i, call in enumerate(raw):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadRequest(f"{where}[{i}] must have a function with name and arguments.", param=f"{where}[{i}]")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else dump_wire_json(arguments or {}).decode()
        calls.append({"id": str(call.get("id") or ""), "name": str(function.get("name") or ""), "arguments": text})
    return calls
