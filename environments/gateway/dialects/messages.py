"""Anthropic Messages.

From:  `POST {base}/v1/messages`, `/v1/messages/count_tokens`, `GET {base}/v1/models` with Anthropic's version header.
To:    canonical requests; `message` bodies and their event streams.
Holds: a thinking block's signature names our answer. One canonical tool message per result, however results and text
       are put into user messages; system messages inside the history stay where they are.
"""

from collections.abc import Mapping
from typing import Any

from environments.gateway.dialects import Answer, BadRequest, Head, Target, What
from environments.gateway.dialects.reading import (
    Turns,
    arguments_object,
    arguments_text,
    check_choice,
    fold_parts,
    function_tool,
    media_part,
    need_list,
    need_messages,
    need_object,
    refuse_form,
    refuse_stops,
    seal,
    text_or_empty,
    text_part,
    unseal,
)
from environments.gateway.marks import read_agent, says_retry
from environments.gateway.messages import Request
from environments.text import dump_wire_json

PARAMETERS = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "tool_choice", "thinking",
    "output_config",
)  # fmt: skip
READ = {"messages", "system", "tools", "stream", *PARAMETERS}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}  # fmt: skip
HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_", "mcp_toolset")
"""Tools that run at the provider: left out, and kept on the call's record."""
HOSTED_BLOCKS = ("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "mcp_tool_use",
                 "mcp_tool_result", "container_upload", "code_execution_tool_result")  # fmt: skip
MEDIA = {"image": "image", "document": "document", "search_result": "document"}


class Messages:
    name = "messages"
    keep_alive = b'event: ping\ndata: {"type": "ping"}\n\n'

    def routes(self, target: Target) -> What | None:
        path = target.path.removeprefix("/v1")
        if target.method == "POST":
            return {"/messages": "complete", "/messages/count_tokens": "count"}.get(path)  # type: ignore[return-value]
        if target.method != "GET" or "anthropic-version" not in target.headers:
            return None
        return "models" if path == "/models" else "model" if path.startswith("/models/") else None

    def read_request(self, body: Any, target: Target) -> Request:
        body = need_object(body, "The body")
        raw_messages = need_messages(body.get("messages"), "messages")
        check_honoured(body)
        tools, left_out = read_tools(need_list(body.get("tools"), "tools"))
        turns = Turns()
        system = body.get("system")
        if system:
            turns.add({"role": "system", "content": fold_parts(read_blocks(system, "system"), glue="\n")})
        for i, message in enumerate(raw_messages):
            read_message(turns, need_object(message, f"messages[{i}]"), f"messages[{i}]")
        requested = {name: body[name] for name in PARAMETERS if body.get(name) is not None}
        choice = requested.get("tool_choice")
        unknown = {name: value for name, value in body.items() if name not in READ}
        return Request(
            dialect=self.name,
            messages=turns.messages,
            tools=[] if isinstance(choice, dict) and choice.get("type") == "none" else tools,
            stream=body.get("stream") is True,
            requested=requested,
            unknown=unknown | ({"left_out_tools": left_out} if left_out else {}),
            model=str(body.get("model") or ""),
            agent=read_agent(target.headers),
            is_retry=says_retry(target.headers),
        )

    def whole(self, head: Head, answer: Answer) -> bytes:
        content: list[dict[str, Any]] = []
        if answer.message.get("reasoning"):
            thinking = answer.message["reasoning"]
            content.append({"type": "thinking", "thinking": thinking, "signature": seal(head.call)})
        if answer.message.get("content"):
            content.append({"type": "text", "text": answer.message["content"]})
        for call in answer.message.get("tool_calls") or ():
            content.append(tool_use(call) | {"input": arguments_object(call["arguments"])})
        body = frame(head) | {"content": content, "stop_reason": STOP_REASONS[answer.finish_reason]}
        return dump_wire_json(body | {"usage": usage(answer)})

    def open_stream(self, head: Head) -> "MessagesStream":
        return MessagesStream(head)

    def error(self, status: int, message: str, *, code: str, param: str | None = None) -> bytes:
        kind = ERRORS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
        return dump_wire_json({"type": "error", "error": {"type": kind, "message": message}})

    def overflow(self, *, limit: int, num_prompt_tokens: int) -> tuple[int, str, str]:
        return 400, "context_length_exceeded", f"prompt is too long: {num_prompt_tokens} tokens > {limit} maximum"

    def count(self, num_prompt_tokens: int) -> bytes:
        return dump_wire_json({"input_tokens": num_prompt_tokens})

    def models(self, name: str, *, single: bool = False) -> bytes:
        model = {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        listed = {"data": [model], "has_more": False, "first_id": name, "last_id": name}
        return dump_wire_json(model if single else listed)


class MessagesStream:
    """Blocks open and close one after the other: thinking, text, tool uses."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._index = 0
        self._kind = ""
        """Of the open block: thinking | text."""

    def begin(self) -> bytes:
        given = {"input_tokens": self.head.num_prompt_tokens, "cache_creation_input_tokens": 0}
        message = frame(self.head) | {"content": [], "stop_reason": None}
        message["usage"] = given | {"cache_read_input_tokens": 0, "output_tokens": 0}
        return event("message_start", message=message)

    def reasoning(self, text: str) -> bytes:
        opening = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opening + self._delta({"type": "thinking_delta", "thinking": text})

    def text(self, text: str) -> bytes:
        opening = self._open("text", {"type": "text", "text": ""})
        return opening + self._delta({"type": "text_delta", "text": text})

    def end(self, answer: Answer) -> bytes:
        pieces = [self._close()]
        for call in answer.message.get("tool_calls") or ():
            pieces.append(self._open("tool_use", tool_use(call) | {"input": {}}))
            pieces.append(self._delta({"type": "input_json_delta", "partial_json": call["arguments"]}))
            pieces.append(self._close())
        delta = {"stop_reason": STOP_REASONS[answer.finish_reason], "stop_sequence": None}
        pieces.append(event("message_delta", delta=delta, usage=usage(answer)))
        return b"".join([*pieces, event("message_stop")])

    def fail(self, message: str) -> bytes:
        return event("error", error={"type": "api_error", "message": message})

    def _open(self, kind: str, block: dict[str, Any]) -> bytes:
        if self._kind == kind:
            return b""
        closing = self._close()
        self._kind = kind
        return closing + event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        signature = b""
        if self._kind == "thinking":
            signature = self._delta({"type": "signature_delta", "signature": seal(self.head.call)})
        closing = signature + event("content_block_stop", index=self._index)
        self._kind, self._index = "", self._index + 1
        return closing

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


def event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dump_wire_json({"type": kind, **fields}) + b"\n\n"


def frame(head: Head) -> dict[str, Any]:
    named = {"id": f"msg_{head.call}", "type": "message", "role": "assistant", "model": head.model}
    return named | {"stop_sequence": None}


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.num_prompt_tokens - answer.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.num_cached_tokens,
        "output_tokens": answer.num_sampled_tokens,
    }


def tool_use(call: Mapping[str, str]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["name"]}


def check_honoured(body: Mapping[str, Any]) -> None:
    refuse_stops(body.get("stop_sequences"), "stop_sequences")
    check_choice(body.get("tool_choice"), ("auto", "none"))
    config = body.get("output_config")
    refuse_form(config.get("format") if isinstance(config, dict) else None, "output_config.format")


def read_tools(raw: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """(canonical tools, kinds that are left out)"""
    tools, left_out = [], []
    for i, tool in enumerate(raw):
        where = f"tools[{i}]"
        kind = str(need_object(tool, where).get("type") or "custom")
        if kind.startswith(HOSTED):
            left_out.append(kind)
        elif kind == "custom":
            tools.append(function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), where))
        else:
            raise BadRequest(
                f"{where}.type {kind!r} has a schema that only its provider knows. Give it as a tool with input_schema.",
                param=f"{where}.type",
            )
    return tools, left_out


def read_message(turns: Turns, message: dict[str, Any], where: str) -> None:
    role = message.get("role")
    blocks = read_blocks(message.get("content"), f"{where}.content")
    if role == "assistant":
        read_answer(turns, blocks, where)
    elif role in ("user", "system"):
        read_given(turns, str(role), blocks)
    else:
        raise BadRequest(f"{where}.role must be user, assistant or system.", param=f"{where}.role")


def read_answer(turns: Turns, blocks: list[dict[str, Any]], where: str) -> None:
    turns.close()
    before = len(turns.messages)
    texts: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] == "thinking":
            turns.reasoning(block["text"], block["call"])
        elif block["type"] == "tool_use":
            if texts:
                turns.text(fold_parts(texts))
                texts = []
            turns.call(block["id"], block["name"], block["arguments"])
        elif block["type"] == "tool_result":
            raise BadRequest(f"{where} is an assistant message with a tool_result block.", param=f"{where}.content")
        else:
            texts.append(block)
    if texts or len(turns.messages) == before:
        turns.text(fold_parts(texts))
    turns.close()


def read_given(turns: Turns, role: str, blocks: list[dict[str, Any]]) -> None:
    """Tool results are messages of their own; the texts between them are one message each."""
    texts: list[dict[str, Any]] = []
    results = 0
    for block in blocks:
        if block["type"] == "tool_result":
            if texts:
                turns.add({"role": role, "content": fold_parts(texts, glue="\n")})
                texts = []
            result = {"role": "tool", "content": block["content"], "tool_call_id": block["id"]}
            turns.add(result | ({"is_error": True} if block["is_error"] else {}))
            results += 1
        elif block["type"] not in ("tool_use", "thinking"):
            texts.append(block)
    if texts or not results:
        turns.add({"role": role, "content": fold_parts(texts, glue="\n")})


def read_blocks(raw: Any, where: str) -> list[dict[str, Any]]:
    """Blocks in a checked form; those of the provider's own tools are left out."""
    if raw is None or isinstance(raw, str):
        return [text_part(raw)] if raw else []
    blocks = []
    for i, block in enumerate(need_list(raw, where)):
        read = read_block(block, f"{where}[{i}]")
        if read is not None:
            blocks.append(read)
    return blocks


def read_block(block: Any, where: str) -> dict[str, Any] | None:
    if isinstance(block, str):
        return text_part(block)
    kind = str(need_object(block, where).get("type"))
    if kind == "text":
        return text_part(text_or_empty(block.get("text"), f"{where}.text"))
    if kind == "thinking":
        text = text_or_empty(block.get("thinking"), f"{where}.thinking")
        return {"type": "thinking", "text": text, "call": unseal(block.get("signature"))}
    if kind == "redacted_thinking":
        return {"type": "thinking", "text": "", "call": unseal(block.get("data"))}
    if kind == "tool_use":
        called = {"id": str(block.get("id") or ""), "name": str(block.get("name") or "")}
        return {"type": "tool_use", **called, "arguments": arguments_text(block.get("input"))}
    if kind == "tool_result":
        content = fold_parts(read_blocks(block.get("content"), f"{where}.content"), glue="\n")
        named = {"id": str(block.get("tool_use_id") or ""), "is_error": block.get("is_error") is True}
        return {"type": "tool_result", "content": content, **named}
    if kind in MEDIA:
        source = block.get("source")
        return media_part(MEDIA[kind], where, source=source if isinstance(source, dict) else {})
    if kind in HOSTED_BLOCKS:
        return None
    raise BadRequest(f"{where}.type {kind!r} is not known.", param=f"{where}.type")
