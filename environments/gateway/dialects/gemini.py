"""Google Gemini.

From:  `POST {base}/v1beta/models/{model}:generateContent`, `:streamGenerateContent?alt=sse`, `:countTokens`,
       `GET {base}/v1beta/models`.
To:    canonical requests; GenerateContentResponse bodies and streams.
Holds: function calls carry our ids; a thought signature names our answer. Kept warm with blank lines: clients lose an
       answer in which a comment stands.
"""

import re
from collections.abc import Mapping
from typing import Any

from environments.gateway.dialects import Answer, BadRequest, Head, Target, What
from environments.gateway.dialects.reading import (
    Turns,
    arguments_object,
    arguments_text,
    fold_parts,
    function_tool,
    media_part,
    need_list,
    need_messages,
    need_object,
    refuse_stops,
    seal,
    text_or_empty,
    text_part,
    unseal,
)
from environments.gateway.marks import read_agent, says_retry
from environments.gateway.messages import Request, tool_call_id
from environments.text import dump_wire_json

PATH = re.compile(
    r"/v1(?:beta|alpha)?/models/(?P<model>.+):(?P<verb>generateContent|streamGenerateContent|countTokens)"
)
LIST = re.compile(r"/v1(?:beta|alpha)/models(?:/(?P<model>[^:]+))?")
FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT", 415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
}  # fmt: skip
READ = {"contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config",
        "generationConfig", "generation_config"}  # fmt: skip
RESULT_KEYS = ("output", "result", "content", "error")
"""Under which clients put the text of a function's result."""


class Gemini:
    name = "gemini"
    keep_alive = b"\n\n"

    def routes(self, target: Target) -> What | None:
        if target.method == "POST" and (match := PATH.fullmatch(target.path)):
            return "count" if match["verb"] == "countTokens" else "complete"
        if target.method == "GET" and (match := LIST.fullmatch(target.path)):
            return "model" if match["model"] else "models"
        return None

    def read_request(self, body: Any, target: Target) -> Request:
        body = need_object(body, "The body")
        match = PATH.fullmatch(target.path)
        verb, model = (match["verb"], match["model"]) if match else ("generateContent", "")
        if verb == "countTokens":
            body = body.get("generateContentRequest") or body
        is_stream = verb == "streamGenerateContent"
        if is_stream and target.query.get("alt") != "sse":
            raise BadRequest("streamGenerateContent needs alt=sse: a stream is server-sent events here.", param="alt")
        config = need_object(either(body, "generationConfig") or {}, "generationConfig")
        choice = read_choice(either(body, "toolConfig"))
        check_honoured(body, config, choice)
        history = History()
        history.read(body)
        tools, left_out = read_tools(need_list(body.get("tools"), "tools"))
        thinking = either(config, "thinkingConfig")
        unknown = {name: value for name, value in body.items() if name not in READ}
        return Request(
            dialect=self.name,
            messages=history.turns.messages,
            tools=[] if choice == "NONE" else tools,
            stream=is_stream,
            requested={"model": model} | config | ({"toolChoice": choice} if choice else {}),
            unknown=unknown | ({"left_out_tools": left_out} if left_out else {}),
            model=model,
            agent=read_agent(target.headers),
            is_retry=says_retry(target.headers),
            hints={"thoughts": bool(isinstance(thinking, dict) and either(thinking, "includeThoughts"))},
        )

    def whole(self, head: Head, answer: Answer) -> bytes:
        parts: list[dict[str, Any]] = []
        if answer.message.get("reasoning"):
            parts += thought_parts(head, answer.message["reasoning"])
        if answer.message.get("content"):
            parts.append({"text": answer.message["content"]})
        parts += call_parts(head, answer)
        return dump_wire_json(last_chunk(head, parts or [{"text": ""}], answer))

    def open_stream(self, head: Head) -> "GeminiStream":
        return GeminiStream(head)

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes:
        return dump_wire_json(error_value(status, message))

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        return (
            400,
            "context_length_exceeded",
            f"The input token count ({num_prompt_tokens}) exceeds the maximum number of tokens allowed ({limit}).",
        )

    def count(self, num_prompt_tokens: int) -> bytes:
        return dump_wire_json({"totalTokens": num_prompt_tokens})

    def models(self, name: str, *, single: bool = False) -> bytes:
        methods = ["generateContent", "streamGenerateContent", "countTokens"]
        model = {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
        return dump_wire_json(model if single else {"models": [model]})


class GeminiStream:
    def __init__(self, head: Head) -> None:
        self.head = head

    def begin(self) -> bytes:
        return b""

    def reasoning(self, text: str) -> bytes:
        parts = thought_parts(self.head, text)
        return event(chunk(self.head, parts)) if parts else b""

    def text(self, text: str) -> bytes:
        return event(chunk(self.head, [{"text": text}]))

    def end(self, answer: Answer) -> bytes:
        return event(last_chunk(self.head, call_parts(self.head, answer) or [{"text": ""}], answer))

    def fail(self, message: str) -> bytes:
        return event(error_value(500, message))


def event(value: Any) -> bytes:
    return b"data: " + dump_wire_json(value) + b"\n\n"


def error_value(status: int, message: str) -> dict[str, Any]:
    name = STATUS.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def chunk(head: Head, parts: list[dict[str, Any]], finish: str = "") -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": head.model, "responseId": head.call}


def last_chunk(head: Head, parts: list[dict[str, Any]], answer: Answer) -> dict[str, Any]:
    return chunk(head, parts, FINISH[answer.finish_reason]) | {
        "usageMetadata": {
            "promptTokenCount": answer.num_prompt_tokens,
            "candidatesTokenCount": answer.num_sampled_tokens,
            "totalTokenCount": answer.num_prompt_tokens + answer.num_sampled_tokens,
            "cachedContentTokenCount": answer.num_cached_tokens,
        }
    }


def thought_parts(head: Head, text: str) -> list[dict[str, Any]]:
    """Only for clients that asked for thoughts: others would take them for text."""
    return [{"text": text, "thought": True}] if head.hints.get("thoughts") else []


def call_parts(head: Head, answer: Answer) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for call in answer.message.get("tool_calls") or ():
        value = {"id": call["id"], "name": call["name"], "args": arguments_object(call["arguments"])}
        parts.append({"functionCall": value, "thoughtSignature": seal(head.call)})
    return parts


def either(raw: Mapping[str, Any], name: str) -> Any:
    """Fields are accepted in both of Google's spellings."""
    snake = re.sub("[A-Z]", lambda match: "_" + match[0].lower(), name)
    return raw.get(name, raw.get(snake))


def read_choice(raw: Any) -> str:
    config = either(raw, "functionCallingConfig") if isinstance(raw, dict) else None
    return str(config.get("mode") or "") if isinstance(config, dict) else ""


def check_honoured(body: Mapping[str, Any], config: Mapping[str, Any], choice: str) -> None:
    if either(body, "cachedContent"):
        raise BadRequest("cachedContent is not supported: nothing is stored here.", param="cachedContent")
    if (either(config, "candidateCount") or 1) != 1:
        raise BadRequest(
            "candidateCount must be 1: each answer is one node of the trajectory.", param="generationConfig"
        )
    refuse_stops(either(config, "stopSequences"), "generationConfig.stopSequences")
    if (either(config, "responseMimeType") or "text/plain") != "text/plain":
        raise BadRequest(
            "generationConfig.responseMimeType must be text/plain: constrained answers are not the policy's.",
            param="generationConfig.responseMimeType",
        )
    if choice not in ("", "AUTO", "NONE", "VALIDATED", "MODE_UNSPECIFIED"):
        raise BadRequest(
            "functionCallingConfig.mode must be AUTO or NONE: a forced call would not be sampled.", param="toolConfig"
        )


def read_tools(raw: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """(canonical tools, the provider's own tools, which are left out)"""
    tools, left_out = [], []
    for i, tool in enumerate(raw):
        where = f"tools[{i}]"
        for name in need_object(tool, where):
            if name not in ("functionDeclarations", "function_declarations"):
                left_out.append(str(name))
        declared = need_list(either(tool, "functionDeclarations"), f"{where}.functionDeclarations")
        for j, function in enumerate(declared):
            at = f"{where}.functionDeclarations[{j}]"
            schema = either(need_object(function, at), "parametersJsonSchema")
            parameters = schema if schema is not None else lower_types(function.get("parameters"))
            tools.append(function_tool(function.get("name"), function.get("description"), parameters, at))
    return tools, left_out


def lower_types(schema: Any) -> Any:
    """Google's schema names types in capitals; JSON schema, which models know, does not."""
    if isinstance(schema, list):
        return [lower_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else lower_types(value)
        for key, value in schema.items()
    }


class History:
    """Contents -> canonical messages. A result without an id belongs to the next open call of its name."""

    def __init__(self) -> None:
        self.turns = Turns(joins_text=True)
        self.open_calls: list[tuple[str, str]] = []
        """(id, name) of calls without a result yet."""

    def read(self, body: Mapping[str, Any]) -> None:
        system = either(body, "systemInstruction")
        if system:
            parts = system.get("parts") if isinstance(system, dict) else system
            parts = [parts] if isinstance(parts, str | dict) else parts
            read = self._parts(parts, "systemInstruction.parts")
            self.turns.add({"role": "system", "content": fold_parts(read, glue="\n")})
        contents = body.get("contents")
        if isinstance(contents, str | dict):
            contents = [contents]
        for i, content in enumerate(need_messages(contents, "contents")):
            where = f"contents[{i}]"
            content = {"parts": [{"text": content}]} if isinstance(content, str) else need_object(content, where)
            self._read_content(content, where)

    def _read_content(self, content: Mapping[str, Any], where: str) -> None:
        role = content.get("role") or "user"
        parts = self._parts(content.get("parts"), f"{where}.parts")
        if role == "model":
            self._read_answer(parts, where)
        elif role in ("user", "function", "tool"):
            self._read_given(parts)
        else:
            raise BadRequest(f"{where}.role must be user or model.", param=f"{where}.role")

    def _read_answer(self, parts: list[dict[str, Any]], where: str) -> None:
        if not parts:
            self.turns.text("")
        position = 0
        for part in parts:
            if part["type"] == "call":
                call_id = part["id"] or (tool_call_id(part["of"], position) if part["of"] else "")
                position += 1
                self.turns.call(call_id, part["name"], part["arguments"])
                self.turns.mark(part["of"])
                self.open_calls.append((call_id, part["name"]))
            elif part["type"] == "thought":
                self.turns.reasoning(part["text"], part["of"])
            elif part["type"] == "result":
                raise BadRequest(f"{where} is a model turn with a functionResponse.", param=where)
            else:
                self.turns.text(part["text"] if part["type"] == "text" else [part])

    def _read_given(self, parts: list[dict[str, Any]]) -> None:
        others = [part for part in parts if part["type"] not in ("call", "thought", "result")]
        results = [part for part in parts if part["type"] == "result"]
        for result in results:
            named = {"tool_call_id": self._close_call(result["id"], result["name"]), "name": result["name"]}
            self.turns.add({"role": "tool", "content": result["content"], **named})
        if others or not results:
            self.turns.add({"role": "user", "content": fold_parts(others, glue="\n")})

    def _close_call(self, call_id: str, name: str) -> str:
        """The id of the call that this is the result of."""
        for opened in self.open_calls:
            if opened[0] == call_id if call_id else opened[1] == name:
                self.open_calls.remove(opened)
                return opened[0]
        return call_id

    def _parts(self, raw: Any, where: str) -> list[dict[str, Any]]:
        return [read_part(part, f"{where}[{i}]") for i, part in enumerate(need_list(raw, where))]


def read_part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return text_part(part)
    part = need_object(part, where)
    of = unseal(either(part, "thoughtSignature"))
    if isinstance(call := either(part, "functionCall"), dict):
        named = {"id": str(call.get("id") or ""), "name": str(call.get("name") or ""), "of": of}
        return {"type": "call", "arguments": arguments_text(call.get("args")), **named}
    if isinstance(result := either(part, "functionResponse"), dict):
        named = {"id": str(result.get("id") or ""), "name": str(result.get("name") or "")}
        return {"type": "result", "content": read_result(result.get("response")), **named}
    if "text" in part:
        text = text_or_empty(part["text"], f"{where}.text")
        return {"type": "thought", "text": text, "of": of} if part.get("thought") else text_part(text)
    if part.get("thought") or of:
        return {"type": "thought", "text": "", "of": of}
    for name, kind in (("inlineData", "image"), ("fileData", "document")):
        if isinstance(data := either(part, name), dict):
            return media_part(kind, where, source=data)
    raise BadRequest(f"{where} is no text, functionCall or functionResponse.", param=where)


def read_result(response: Any) -> str:
    """The text that a function gave back, out of the object in which clients wrap it."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict) and len(response) == 1:
        [(key, value)] = response.items()
        if key in RESULT_KEYS and isinstance(value, str):
            return value
    return dump_wire_json(response if response is not None else {}).decode()
