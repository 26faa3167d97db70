"""An instant HTTP server on a unix socket, and a client's program that times its calls: what a relay adds lies between.

From:  gyre_web.bench.sandboxes.
To:    the median milliseconds of a call: CLIENT prints it inside a sandbox, `serve_echo` gives the direct one.
"""

import contextlib
import http.client
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CALLS = 300
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 1000 + b'"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-gyre-relay: 1\r\ncontent-length: 2\r\n\r\n{}"
CLIENT = f"""
import http.client, statistics, time
c = http.client.HTTPConnection("127.0.0.1", 8100)
took = []
for _ in range({CALLS}):
    began = time.perf_counter()
    c.request("POST", "/v1/chat/completions", {BODY!r})
    c.getresponse().read()
    took.append(1000 * (time.perf_counter() - began))
print(statistics.median(took), "ms", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def serve_echo(path: Path) -> Iterator[Callable[[], float]]:
    """While it serves: a function that measures the direct call."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(128)
    thread = threading.Thread(target=_serve, args=(listener,), daemon=True)
    thread.start()
    try:
        yield lambda: measure_direct(path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        path.unlink(missing_ok=True)


def _serve(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    with client, contextlib.suppress(OSError):
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")), 0
        )
        while len(body) < length:
            body += client.recv(65536)
        client.sendall(ANSWER)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def measure_direct(path: Path) -> float:
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        connection = _UnixConnection(path)
        connection.request("POST", "/v1/chat/completions", BODY)
        connection.getresponse().read()
        connection.close()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)
