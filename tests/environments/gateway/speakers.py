"""The providers' own SDKs as clients of the gateway: one class a dialect, all telling the same conversation.

Each `ask` sends the history so far and returns what the SDK parsed; `answer` and `results` grow the history in the
form in which that SDK's users do.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

SYSTEM = "You work in a shell."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
DESCRIPTION = "Run a command."


@dataclass
class Heard:
    """What an SDK made of an answer."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, dict[str, Any]]]
    finish: str
    usage: tuple[int, int]
    raw: Any = field(repr=False, default=None)


def http_client(socket: Any, library: Any = httpx) -> Any:
    """library: the one that the SDK is built on."""
    return library.AsyncClient(transport=library.AsyncHTTPTransport(uds=str(socket)), timeout=300)


class ChatSpeaker:
    dialect = "chat"

    def __init__(self, socket: Any, key: str, *, stream: bool) -> None:
        import openai

        self.stream = stream
        self.client = openai.AsyncOpenAI(
            base_url=f"http://gw/s/{key}/v1", api_key=key, http_client=http_client(socket), max_retries=0
        )
        function = {"name": "bash", "description": DESCRIPTION, "parameters": SCHEMA}
        self.options: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
        self.history: list[Any] = [{"role": "system", "content": SYSTEM}]

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    async def ask(self, **more: Any) -> Heard:
        options = self.options | more
        if not self.stream:
            got = await self.client.chat.completions.create(model="M", messages=self.history, **options)
            message, finish, usage = got.choices[0].message, got.choices[0].finish_reason, got.usage
            calls = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
            text, reasoning = message.content or "", getattr(message, "reasoning_content", "") or ""
        else:
            text, reasoning, finish, usage, parts = "", "", "", None, {}
            async for chunk in await self.client.chat.completions.create(
                model="M", messages=self.history, stream=True, stream_options={"include_usage": True}, **options
            ):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    reasoning += getattr(choice.delta, "reasoning_content", "") or ""
                    finish = choice.finish_reason or finish
                    for call in choice.delta.tool_calls or ():
                        part = parts.setdefault(call.index, ["", "", ""])
                        part[0] += call.id or ""
                        part[1] += call.function.name or ""
                        part[2] += call.function.arguments or ""
            calls = [tuple(parts[index]) for index in sorted(parts)]
        message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
        if calls:
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
            ]
        self.history.append(message)
        parsed = [(i, n, json.loads(a)) for i, n, a in calls]
        return Heard(text, reasoning, parsed, finish, (usage.prompt_tokens, usage.completion_tokens), calls)

    def results(self, heard: Heard, texts: list[str]) -> None:
        for (call_id, _, _), text in zip(heard.calls, texts, strict=True):
            self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})

    async def close(self) -> None:
        await self.client.close()


class ResponsesSpeaker:
    dialect = "responses"

    def __init__(self, socket: Any, key: str, *, stream: bool) -> None:
        import openai

        self.stream = stream
        self.client = openai.AsyncOpenAI(
            base_url=f"http://gw/s/{key}/v1", api_key=key, http_client=http_client(socket), max_retries=0
        )
        tool = {"type": "function", "name": "bash", "description": DESCRIPTION, "parameters": SCHEMA, "strict": False}
        self.options: dict[str, Any] = {"tools": [tool]}
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": [{"type": "input_text", "text": text}]})

    async def ask(self, **more: Any) -> Heard:
        options = {
            "model": "M", "instructions": SYSTEM, "input": self.history, "store": False,
            "include": ["reasoning.encrypted_content"], **self.options, **more,
        }  # fmt: skip
        self.kinds: list[str] = []
        if self.stream:
            got, deltas = None, ""
            async for event in await self.client.responses.create(stream=True, **options):
                assert event.sequence_number == len(self.kinds)
                self.kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    deltas += event.delta
                if event.type in ("response.completed", "response.incomplete"):
                    got = event.response
            assert deltas == got.output_text
        else:
            got = await self.client.responses.create(**options)
        reasoning = "".join(p.text for item in got.output if item.type == "reasoning" for p in item.summary)
        calls = [(i.call_id, i.name, json.loads(i.arguments)) for i in got.output if i.type == "function_call"]
        finish = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}[got.status]
        self.history += [item.model_dump(exclude_none=True) for item in got.output]
        usage = (got.usage.input_tokens, got.usage.output_tokens)
        return Heard(got.output_text, reasoning, calls, finish, usage, got)

    def results(self, heard: Heard, texts: list[str]) -> None:
        for (call_id, _, _), text in zip(heard.calls, texts, strict=True):
            self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})

    async def close(self) -> None:
        await self.client.close()


class MessagesSpeaker:
    dialect = "messages"

    def __init__(self, socket: Any, key: str, *, stream: bool) -> None:
        import anthropic
        import httpx2

        self.stream = stream
        self.client = anthropic.AsyncAnthropic(
            base_url=f"http://gw/s/{key}", api_key=key, http_client=http_client(socket, httpx2), max_retries=0
        )
        self.options: dict[str, Any] = {"tools": [{"name": "bash", "description": DESCRIPTION, "input_schema": SCHEMA}]}
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    async def ask(self, **more: Any) -> Heard:
        options = {
            "model": "M", "max_tokens": 4000, "messages": self.history,
            "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}], **self.options, **more,
        }  # fmt: skip
        if self.stream:
            async with self.client.messages.stream(**options) as events:
                got = await events.get_final_message()
        else:
            got = await self.client.messages.create(**options)
        text = "".join(block.text for block in got.content if block.type == "text")
        reasoning = "".join(block.thinking for block in got.content if block.type == "thinking")
        calls = [(block.id, block.name, block.input) for block in got.content if block.type == "tool_use"]
        finish = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}[got.stop_reason]
        self.history.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in got.content]})
        usage = (got.usage.input_tokens, got.usage.output_tokens)
        return Heard(text, reasoning, calls, finish, usage, got)

    def results(self, heard: Heard, texts: list[str]) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for (call_id, _, _), text in zip(heard.calls, texts, strict=True)
        ]
        self.history.append({"role": "user", "content": blocks})

    async def close(self) -> None:
        await self.client.close()


class GeminiSpeaker:
    dialect = "gemini"

    def __init__(self, socket: Any, key: str, *, stream: bool) -> None:
        from google import genai
        from google.genai import types

        self.stream, self.types = stream, types
        self.http = http_client(socket)
        self.client = genai.Client(
            api_key=key,
            http_options=types.HttpOptions(base_url=f"http://gw/s/{key}", httpx_async_client=self.http),
        )
        declared = types.FunctionDeclaration(name="bash", description=DESCRIPTION, parameters_json_schema=SCHEMA)
        self.options: dict[str, Any] = {"tools": [types.Tool(function_declarations=[declared])]}
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append(self.types.Content(role="user", parts=[self.types.Part(text=text)]))

    async def ask(self, **more: Any) -> Heard:
        config = self.types.GenerateContentConfig(
            system_instruction=SYSTEM,
            thinking_config=self.types.ThinkingConfig(include_thoughts=True),
            automatic_function_calling=self.types.AutomaticFunctionCallingConfig(disable=True),
            **(self.options | more),
        )
        asked = {"model": "M", "contents": self.history, "config": config}
        if self.stream:
            chunks = [chunk async for chunk in await self.client.aio.models.generate_content_stream(**asked)]
        else:
            chunks = [await self.client.aio.models.generate_content(**asked)]
        contents = [chunk.candidates[0].content for chunk in chunks]
        parts = [part for content in contents for part in content.parts or ()]
        self.history += contents
        text = "".join(part.text or "" for part in parts if not part.thought)
        reasoning = "".join(part.text or "" for part in parts if part.thought)
        called = [part.function_call for part in parts if part.function_call]
        calls = [(call.id, call.name, dict(call.args)) for call in called]
        last = chunks[-1]
        finish = {"STOP": "tool_calls" if calls else "stop", "MAX_TOKENS": "length"}[
            last.candidates[0].finish_reason.name
        ]
        usage = (last.usage_metadata.prompt_token_count, last.usage_metadata.candidates_token_count)
        return Heard(text, reasoning, calls, finish, usage, last)

    def results(self, heard: Heard, texts: list[str]) -> None:
        parts = [
            self.types.Part(
                function_response=self.types.FunctionResponse(id=call_id, name=name, response={"output": text})
            )
            for (call_id, name, _), text in zip(heard.calls, texts, strict=True)
        ]
        self.history.append(self.types.Content(role="user", parts=parts))

    async def close(self) -> None:
        await self.http.aclose()


SPEAKERS = {speaker.dialect: speaker for speaker in (ChatSpeaker, ResponsesSpeaker, MessagesSpeaker, GeminiSpeaker)}
