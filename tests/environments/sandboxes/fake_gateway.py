"""A stand-in for the gateway, in a process of its own so that it can be killed: `fake_gateway.py SOCKET LOG`.

It speaks the relay's side of the wire only. A path says what it does:
/echo                          what came: method, target, headers, size and digest of the body, as JSON
/body?size=N[&stall=M]         N bytes that depend on nothing, chunked, from the asked offset; stops before byte M until
                               it is asked for M or later
/sized?size=N[&stall=M]        the same with content-length
/retry                         503 x-gyre-relay-retry, until LOG.open exists; then /echo
/drop                          closes without a word, until LOG.open exists; then /echo
Each request and each hang-up is one JSON line in LOG.
"""

import hashlib
import json
import os
import select
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


def body_of(size: int) -> bytes:
    """Bytes in which every place is different."""
    return b"".join(b"%09d\n" % at for at in range(0, size, 10))[:size]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        self.url = urlsplit(self.path)
        self.query = {name: int(values[0]) for name, values in parse_qs(self.url.query).items() if values[0].isdigit()}
        self.offset = int(self.headers.get("x-gyre-relay-offset", "0"))
        self.note(event="request", path=self.path, offset=self.offset, call=self.headers.get("x-gyre-relay-call"))
        gate_is_open = Path(sys.argv[2] + ".open").exists()
        if self.url.path == "/drop" and not gate_is_open:
            self.close_connection = True
        elif self.url.path == "/retry" and not gate_is_open:
            self.send(503, b"later", {"x-gyre-relay-retry": "1"})
        elif self.url.path in ("/body", "/sized"):
            self.send_body()
        else:
            self.send_echo(body)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = handle_any

    def send_echo(self, body: bytes) -> None:
        said = {
            "method": self.command,
            "target": self.path,
            "headers": [[name, value] for name, value in self.headers.items()],
            "size": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        self.send(200, json.dumps(said).encode(), {"x-gyre-relay": "1", "content-type": "application/json"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_body(self) -> None:
        whole = body_of(self.query["size"])
        stall = self.query.get("stall", len(whole))
        end = stall if self.offset < stall else len(whole)
        chunked = self.url.path == "/body"
        self.send_response(200)
        self.send_header("x-gyre-relay", "1")
        if chunked:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(len(whole) - self.offset))
        self.end_headers()
        step = 1000 if len(whole) < 1_000_000 else 65536
        for at in range(self.offset, end, step):
            piece = whole[at : min(at + step, end)]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if end < len(whole):
            self.note(event="stalled", at=end)
            self.wait_hang_up()
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def wait_hang_up(self) -> None:
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        poll.poll()
        self.note(event="hang_up", at=time.monotonic())
        self.close_connection = True

    def note(self, **event: Any) -> None:
        line = json.dumps(event).encode() + b"\n"
        log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(log, line)
        os.close(log)

    def address_string(self) -> str:
        return "relay"

    def log_message(self, *_: Any) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    path = sys.argv[1]
    Path(path).unlink(missing_ok=True)
    server = Server(path, Handler)
    os.chmod(path, 0o666)
    server.serve_forever()


if __name__ == "__main__":
    main()
