"""A stand-in for the gateway on its unix socket: answers Chat requests from a list, keeps every body it saw."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

Answer = str | tuple[int, dict[str, Any]]


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    answer: Callable[[dict[str, Any]], Answer]
    bodies: list[dict[str, Any]]
    paths: list[str]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/relay/ack":
            self.respond(200, {})
            return
        body = json.loads(raw)
        self.server.bodies.append(body)
        self.server.paths.append(self.path)
        answer = self.server.answer(body)
        if isinstance(answer, tuple):
            self.respond(*answer)
            return
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.respond(
            200,
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": "gyre",
                "choices": [choice],
                "usage": usage,
            },
        )

    def respond(self, status: int, value: dict[str, Any]) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        for name, content in (
            ("x-gyre-relay", "1"),
            ("content-type", "application/json"),
            ("content-length", str(len(text))),
        ):
            self.send_header(name, content)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class ScriptedWire:
    """The n-th answer goes to a request with n assistant messages before it; the last one repeats."""

    def __init__(self, directory: Path, answers: list[Answer]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.server = _Server(str(directory / "gateway.sock"), _Handler)
        (directory / "gateway.sock").chmod(0o777)
        self.server.bodies, self.server.paths = [], []
        self.server.answer = lambda body: answers[min(len(self.bodies) - 1, len(answers) - 1)]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return self.server.bodies

    @property
    def paths(self) -> list[str]:
        return self.server.paths

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
