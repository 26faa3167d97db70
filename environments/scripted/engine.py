"""An engine without a model: vLLM's token protocol, answers by a rule. For tests, benches and trials.

From:  the gateway (`/inference/v1/generate`), whoever publishes weights (/pause, /resume, /update_weight_version).
To:    ids, logprobs and weight versions, in the shapes of vLLM 0.32.
Holds: the same rule and prompt give the same ids; `requests` keeps what was asked and produced, id by id, and so does
       the audit file, of which each line is written before its tokens are sent.
Never: imports vLLM or torch. A token is a byte (environments.rendering.scripted).

    python -m environments.scripted.engine --port 9000 --script script.json --tokens-per-s 50
    script.json: see script.py. faults: {"3": {"refuse": 500}} for the engine's fourth call, see Fault.
    audit file: {"request": name, "prompt": [ids]}, then {"request": name, "ids": [...]} for each piece.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson

from environments.rendering.scripted import ANSWER, BEGIN, END
from environments.scripted.script import DEFAULT_ANSWER, load_rule

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    ids: Sequence[int]
    number: int
    """Of this request at this engine, from 0."""
    call: str = ""
    """Id of the gateway's call: the same when it asks again for the rest."""

    @property
    def text(self) -> str:
        """Message borders are shown as newlines."""
        return bytes(i if i < BEGIN else 10 for i in self.ids).decode("utf-8", "replace")

    def split(self) -> tuple["Prompt", str]:
        """What was asked, and what an earlier engine already answered."""
        start = max((place + 1 for place, i in enumerate(self.ids) if i == ANSWER), default=len(self.ids))
        begun = Prompt(ids=self.ids[start:], number=self.number)
        return replace(self, ids=self.ids[:start]), begun.text


Rule = Callable[[Prompt], str | list[int]]
"""Text (a stop token is added) or ids as they are."""


@dataclass(eq=False, kw_only=True)
class Served:
    """One request, as this engine saw it."""

    prompt: list[int]
    params: dict[str, Any]
    produced: list[int] = field(default_factory=list)
    was_cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with one call; several can come together."""

    refuse: int = 0
    """Answer with this HTTP status."""
    hang_s: float = 0.0
    """Silent before the first token."""
    pause_after: int | None = None
    """Silent for pause_s after so many tokens."""
    pause_s: float = 0.0
    cut_after: int | None = None
    """Break the connection after so many tokens."""
    garbage: bool = False
    """Bytes that are no event, then the end."""
    version_after: int | None = None
    """From this token on, and for all later calls, the weights are `version`."""
    version: str = ""


NO_FAULT = Fault()


class Cut(Exception):
    """The scripted failure: the connection breaks."""


@dataclass(eq=False, kw_only=True)
class ScriptedEngine:
    """An ASGI app. Its fields may be changed while it serves."""

    rule: Rule = lambda prompt: DEFAULT_ANSWER.format(num=len(prompt.ids))
    tokens_per_s: float = 0.0
    """0: at once."""
    tokens_per_chunk: int = 1
    version: str = "0"
    model_name: str = "scripted"
    api_key: str = ""
    fail_after: int | None = None
    """Break the connection after so many tokens of every request."""
    refuse_status: int = 0
    """Answer every generate request with this HTTP status."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By number of the call at this engine, from 0."""
    requests: list[Served] = field(default_factory=list)
    keep_requests: bool = True
    audit: Path | None = None
    """File to which every prompt and every token is appended."""
    is_paused: bool = False
    num_started: int = 0
    _resumed: asyncio.Event = field(default_factory=asyncio.Event)
    _step: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        path, query = scope["path"], parse_qs(scope["query_string"].decode())
        body = await read_all(receive)
        if path == "/inference/v1/generate":
            await self._generate(scope, body, receive, send)
            return
        control = self._control(path, query, body)
        status, value = (200, control) if control is not None else (404, {"error": {"message": f"no {path}"}})
        await send_value(send, status, value)

    def _control(self, path: str, query: dict[str, list[str]], body: bytes) -> dict[str, Any] | None:
        if path == "/pause":
            self.pause()
            return {"status": "paused", "mode": query.get("mode", ["abort"])[0]}
        if path == "/resume":
            self.resume()
            return {"status": "resumed"}
        if path == "/update_weight_version":
            self.version = str(orjson.loads(body)["new_version"])
            return {"success": True, "new_version": self.version}
        answers: dict[str, dict[str, Any]] = {
            "/is_paused": {"is_paused": self.is_paused},
            "/weight_info": {"weight_version": self.version},
            "/collective_rpc": {"results": [None]},
            "/health": {},
            "/metrics": {"num_started": self.num_started},
            "/v1/models": {"object": "list", "data": [{"id": self.model_name, "object": "model"}]},
        }
        return answers.get(path)

    def pause(self) -> None:
        """Requests under way keep what they have and wait (vLLM's mode=keep)."""
        self.is_paused = True
        self._resumed.clear()

    def resume(self) -> None:
        self.is_paused = False
        self._resumed.set()

    async def _generate(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self.api_key and headers.get(b"authorization") != f"Bearer {self.api_key}".encode():
            await send_value(send, 401, {"error": {"message": "Unauthorized"}})
            return
        if self.refuse_status:
            await send_value(send, self.refuse_status, {"error": {"message": "scripted refusal"}})
            return
        request = orjson.loads(body)
        fault = self.faults.get(self.num_started, NO_FAULT)
        number, self.num_started = self.num_started, self.num_started + 1
        if fault.refuse:
            await send_value(send, fault.refuse, {"error": {"message": "scripted refusal of this call"}})
            return
        params = request.get("sampling_params", {})
        call = str(request.get("request_id", "")).partition("-")[0]
        answer = self.rule(Prompt(ids=request["token_ids"], number=number, call=call))
        ids = [*answer.encode("utf-8", "surrogatepass"), END] if isinstance(answer, str) else list(answer)
        served = Served(prompt=request["token_ids"], params=params)
        name = f"{os.getpid()}-{self.num_started}-{request.get('request_id', '')}"
        self._note({"request": name, "prompt": served.prompt})
        if self.keep_requests:
            self.requests.append(served)
        stops = set(params.get("stop_token_ids") or [END])
        ids = until_stop(ids, stops)[: params.get("max_tokens", 16)]
        finish = "stop" if ids and ids[-1] in stops else "length"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        watcher = asyncio.create_task(wait_for_hang_up(receive))
        try:
            await asyncio.sleep(fault.hang_s)
            if fault.garbage:
                await send({"type": "http.response.body", "body": b"data: {no json\n\n", "more_body": False})
                return
            await self._stream(name, request.get("request_id", ""), served, ids, finish, send, watcher, fault)
        finally:
            watcher.cancel()

    def _note(self, line: dict[str, Any]) -> None:
        """Unbuffered: a kill loses nothing that was sent."""
        if self.audit:
            with self.audit.open("ab", buffering=0) as file:
                file.write(orjson.dumps(line) + b"\n")

    async def _stream(
        self,
        name: str,
        request_id: str,
        served: Served,
        ids: list[int],
        finish: str,
        send: Send,
        watcher: "asyncio.Task[None]",
        fault: Fault,
    ) -> None:
        cut_after = self.fail_after if fault.cut_after is None else fault.cut_after
        spans: list[dict[str, Any]] = []
        step = max(1, self.tokens_per_chunk)
        due = asyncio.get_running_loop().time()
        for start in range(0, max(len(ids), 1), step):
            piece = ids[start : start + step]
            due += len(piece) / self.tokens_per_s if self.tokens_per_s else 0.0
            await self._pace(due)
            if watcher.done():
                served.was_cut = True
                return
            if fault.pause_after is not None and start <= fault.pause_after < start + len(piece):
                await asyncio.sleep(fault.pause_s)
            if fault.version_after is not None and start >= fault.version_after:
                self.version = fault.version
            if cut_after is not None and start + len(piece) > cut_after:
                raise Cut(f"scripted failure after {start} tokens")
            grow_spans(spans, self.version, start, start + len(piece))
            served.produced += piece
            self._note({"request": name, "ids": piece})
            is_last = start + step >= len(ids)
            await send_event(send, chunk(request_id, piece, finish if is_last else None, spans if is_last else None))
        usage = {"prompt_tokens": len(served.prompt), "completion_tokens": len(ids)}
        await send_event(send, {"request_id": request_id, "choices": [], "usage": usage})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _pace(self, due: float) -> None:
        while self.is_paused:
            await self._resumed.wait()
        wait_s = due - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
            while self.is_paused:
                await self._resumed.wait()


def until_stop(ids: list[int], stops: set[int]) -> list[int]:
    for position, token_id in enumerate(ids):
        if token_id in stops:
            return ids[: position + 1]
    return ids


def grow_spans(spans: list[dict[str, Any]], version: str, start: int, end: int) -> None:
    if spans and spans[-1]["version"] == version:
        spans[-1]["end"] = end
    else:
        spans.append({"version": version, "start": start, "end": end})


def logprob_of(token_id: int) -> float:
    """Any fixed function will do; tests compute it too."""
    return -(token_id % 97 + 1) / 128


def chunk(request_id: str, ids: list[int], finish: str | None, spans: list[dict[str, Any]] | None) -> dict[str, Any]:
    content = [{"token_id": i, "logprob": logprob_of(i), "rank": 1, "top_logprobs": []} for i in ids]
    choice = {
        "index": 0,
        "token_ids": ids,
        "logprobs": {"content": content},
        "finish_reason": finish,
        "stop_reason": None,
        "weight_versions": spans,
    }
    return {"request_id": request_id, "choices": [choice]}


async def read_all(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return b"".join(pieces)


async def wait_for_hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_event(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": b"data: " + orjson.dumps(value) + b"\n\n", "more_body": True})


async def send_value(send: Send, status: int, value: dict[str, Any]) -> None:
    body = orjson.dumps(value)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


def main(arguments: Sequence[str] | None = None) -> int:
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m environments.scripted.engine", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket")
    where.add_argument("--port", type=int)
    given_paths = {name: os.environ.get(f"GYRE_SCRIPTED_{name}") for name in ("SCRIPT", "AUDIT")}
    parser.add_argument("--script", type=Path, default=given_paths["SCRIPT"])
    parser.add_argument("--audit", type=Path, default=given_paths["AUDIT"])
    parser.add_argument("--answer")
    parser.add_argument("--faults", type=json.loads, default={}, help="JSON: number of the call -> Fault")
    parser.add_argument("--tokens-per-s", type=float, default=os.environ.get("GYRE_SCRIPTED_TOKENS_PER_S", "0"))
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--version", default="0")
    parser.add_argument("--api-key", default=os.environ.get("GYRE_ENGINE_KEY", ""))
    parser.add_argument("--fail-after", type=int)
    given = parser.parse_args(arguments)
    engine = ScriptedEngine(
        tokens_per_s=given.tokens_per_s,
        tokens_per_chunk=given.tokens_per_chunk,
        version=given.version,
        api_key=given.api_key,
        fail_after=given.fail_after,
        keep_requests=False,
        audit=given.audit,
        faults={int(number): Fault(**fault) for number, fault in given.faults.items()},
    )
    if given.script:
        engine.rule = load_rule(given.script)
    elif given.answer is not None:
        engine.rule = lambda prompt: given.answer
    uvicorn.run(
        engine, uds=given.socket, host="127.0.0.1", port=given.port or 0, log_level="warning", timeout_keep_alive=3600
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
