"""OpenAI Responses: what goes out.

From:  responses.py, with a canonical answer, or its pieces as they become certain.
To:    `response` objects and their event streams.
Holds: every event has `type` and a rising `sequence_number`; items open and close one after the other; a call goes back
       in the form in which its tool was offered.
"""

from collections.abc import Mapping
from typing import Any

from environments.gateway.dialects import Answer, Head
from environments.gateway.dialects.reading import arguments_object, freeform_input, seal
from environments.text import dump_wire_json

SHELL = "local_shell"


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
