"""A filtering HTTP proxy for one sandbox: CONNECT and plain HTTP, to hosts on a list, on a unix socket.

From:  whatever in the sandbox obeys http_proxy, through pipe.py; environments.life starts and ends it.
To:    the named hosts; every request, let through or not, to `record` (record.py).
Holds: it resolves names itself, once, and connects to the address that it judged; bytes of all requests together, time
       of one and the number at once are bounded. One plain request a connection: nothing can hide behind it.
Never: looks into TLS, follows a redirect, keeps a body, speaks to an address that is private and not opened.

A thread a connection, in the worker that drives the rollout. A worker that takes over opens it again at the same path:
what was open is cut, what comes next is served.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from environments.egress.rules import Network, Rule, find_rule, is_address, may_reach, normalise_host

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 30.0
CONNECT_S = 20.0
PIECE = 65536
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer upgrade expect host".split()
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """total_bytes: both ways, of all requests together. request_s: of one, however busy. idle_s: without a byte."""

    total_bytes: int = 2 << 30
    request_s: float = 3600.0
    idle_s: float = 300.0
    connections: int = 32


@dataclass(kw_only=True)
class Asked:
    """One request, as it goes. reason: why it was denied, failed or cut; empty where all went well."""

    method: str
    host: str
    port: int
    verdict: str = "allowed"
    reason: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    started_at: float = field(default_factory=time.monotonic)
    row: int | None = None
    """Of record.py."""


class Denied(Exception):
    """What is answered; `status` is HTTP's."""

    def __init__(self, status: str, reason: str, verdict: str = "denied") -> None:
        super().__init__(reason)
        self.status, self.reason, self.verdict = status, reason, verdict


Record = Callable[[Asked, bool], None]
"""Called when a request is judged, and once more (True) when it is over."""
Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Proxy:
    def __init__(
        self,
        path: Path,
        *,
        rules: Sequence[Rule],
        opened: Sequence[Network],
        record: Record,
        limits: Limits | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self.path = path
        self.rules, self.opened, self.record, self.resolve = rules, opened, record, resolve
        self.limits = limits or Limits()
        self.used_bytes = 0
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._slots = threading.BoundedSemaphore(self.limits.connections)
        self._listener = _listen(path)
        self._accepting = threading.Thread(target=self._accept, name="egress", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Cut what is open and take the socket away. Returns when every request is recorded."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            threads = list(self._threads)
        for thread in [self._accepting, *threads]:
            thread.join(CONNECT_S)
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            thread = threading.Thread(target=self._serve, args=(client,), name="egress-request", daemon=True)
            with self._guard:
                self._threads.add(thread)
                self._open.add(client)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            Request(self, client).run()
        except OSError as error:
            logger.info("a request of a sandbox broke off", extra={"error": str(error)})
        except Exception:
            logger.exception("a request of a sandbox could not be served")
        finally:
            self.forget(client)
            with self._guard:
                self._threads.discard(threading.current_thread())
            self._slots.release()

    def keep(self, sock: socket.socket) -> None:
        with self._guard:
            self._open.add(sock)

    def forget(self, sock: socket.socket) -> None:
        with self._guard:
            self._open.discard(sock)
        sock.close()

    def count(self, num_bytes: int) -> bool:
        """Whether so many more are within the limit."""
        with self._guard:
            self.used_bytes += num_bytes
            return self.used_bytes <= self.limits.total_bytes

    def connect(self, host: str, port: int) -> socket.socket:
        """To the first address that may be reached and answers. Raises Denied."""
        try:
            addresses = list(self.resolve(host, port))
        except OSError as error:
            raise Denied("502 Bad Gateway", f"the name cannot be resolved: {error}", "failed") from error
        reachable = [address for address in addresses if may_reach(address, self.opened)]
        if not reachable:
            raise Denied("403 Forbidden", "its address is private")
        failures: list[OSError] = []
        for address in reachable:
            try:
                return socket.create_connection((address, port), timeout=CONNECT_S)
            except OSError as failure:
                failures.append(failure)
        raise Denied("502 Bad Gateway", f"no connection: {failures[-1]}", "failed")


class Request:
    """One connection of the sandbox, which carries one request."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.deadline = time.monotonic() + proxy.limits.request_s

    def run(self) -> None:
        head, rest = self._read_head()
        if not head:
            return
        first, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
        asked = Asked(method="?", host="?", port=0)
        upstream: socket.socket | None = None
        try:
            try:
                path, left = self._judge(asked, first, lines, rest)
                upstream = self.proxy.connect(asked.host, asked.port)
            except Denied as denied:
                asked.verdict, asked.reason = denied.verdict, denied.reason[:200]
                self._refuse(denied)
                return
            self.proxy.keep(upstream)
            self.proxy.record(asked, False)
            self._begin(upstream, asked, path, lines)
            self._pass(asked, upstream, rest, left)
        finally:
            if upstream is not None:
                self.proxy.forget(upstream)
            self.proxy.record(asked, True)

    def _read_head(self) -> tuple[bytes, bytes]:
        """Up to the empty line, and what came behind it; nothing where the sandbox hung up or was too slow."""
        self.client.settimeout(HEAD_S)
        data, deadline = b"", time.monotonic() + HEAD_S
        while len(data) <= MAX_HEAD_BYTES and time.monotonic() < deadline:
            for end in (b"\r\n\r\n", b"\n\n"):
                if end in data:
                    head, _, rest = data.partition(end)
                    return head, rest
            piece = self.client.recv(PIECE)
            if not piece:
                return b"", b""
            data += piece
        self._refuse(Denied("431 Request Header Fields Too Large", "the request's head is too long or too slow"))
        return b"", b""

    def _judge(self, asked: Asked, first: bytes, lines: list[bytes], rest: bytes) -> tuple[str, int | None]:
        """Fill `asked`; returns the path (empty: a tunnel) and how much of a body comes (None: until it ends)."""
        words = first.decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Denied("400 Bad Request", "no HTTP/1 request")
        asked.method, path, left = words[0][:20], "", None
        if words[0] == "CONNECT":
            host, _, port = words[1].rpartition(":")
        else:
            host, port, path = split_url(words[1])
            left = _body_length(lines)
        asked.host = normalise_host(host)[:255]
        asked.port = int(port) if port.isascii() and port.isdigit() and int(port) < 65536 else 0
        if is_address(asked.host):
            raise Denied("403 Forbidden", "an address instead of a name")
        if find_rule(self.proxy.rules, asked.host, asked.port) is None:
            raise Denied("403 Forbidden", "not among the task's allowed hosts")
        if not self.proxy.count(0):
            raise Denied("403 Forbidden", "the rollout's bytes are used up")
        return path, left

    def _refuse(self, denied: Denied) -> None:
        text = f"gyre: {denied.reason}\n".encode()
        head = f"HTTP/1.1 {denied.status}\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\n"
        with contextlib.suppress(OSError):
            self.client.sendall(head.encode() + b"connection: close\r\n\r\n" + text)

    def _begin(self, upstream: socket.socket, asked: Asked, path: str, lines: list[bytes]) -> None:
        if not path:
            self.client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return
        host = asked.host if asked.port == 80 else f"{asked.host}:{asked.port}"
        kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in HOP_BY_HOP]
        head = f"{asked.method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n".encode("latin-1")
        head += b"".join(line + b"\r\n" for line in kept) + b"\r\n"
        asked.sent_bytes += len(head)
        upstream.sendall(head)

    def _pass(self, asked: Asked, upstream: socket.socket, rest: bytes, left: int | None) -> None:
        """Both ways until both have ended, or a limit is reached. left: bytes of body that may still go up."""
        if left is not None:
            rest = rest[:left]
            left -= len(rest)
        asked.sent_bytes += len(rest)
        self.proxy.count(len(rest))
        upstream.sendall(rest)
        for sock in (self.client, upstream):
            sock.settimeout(self.proxy.limits.idle_s)
        poll = select.poll()
        poll.register(upstream, select.POLLIN)
        if left != 0:
            poll.register(self.client, select.POLLIN)
        while True:
            wait_s = min(self.proxy.limits.idle_s, self.deadline - time.monotonic())
            ready = poll.poll(max(0.0, wait_s) * 1000)
            if not ready:
                asked.reason = "cut: it took too long or was idle too long"
                return
            for fd, _ in ready:
                up = fd == self.client.fileno()
                source, target = (self.client, upstream) if up else (upstream, self.client)
                piece = source.recv(PIECE if left is None or not up else min(PIECE, left))
                if not piece and not up:
                    return
                if not piece:
                    poll.unregister(source)
                    with contextlib.suppress(OSError):
                        target.shutdown(socket.SHUT_WR)
                    continue
                if up:
                    asked.sent_bytes += len(piece)
                    left = None if left is None else left - len(piece)
                else:
                    asked.received_bytes += len(piece)
                if not self.proxy.count(len(piece)):
                    asked.reason = "cut: the rollout's bytes are used up"
                    return
                target.sendall(piece)
                if left == 0 and up:
                    poll.unregister(source)


def split_url(url: str) -> tuple[str, str, str]:
    """host, port and path of an absolute http URL. Raises Denied."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.netloc or "@" in parts.netloc:
        raise Denied("400 Bad Request", "neither CONNECT nor an absolute http:// address")
    host, colon, port = parts.netloc.rpartition(":")
    if not colon:
        host, port = parts.netloc, "80"
    return host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _body_length(lines: list[bytes]) -> int:
    """Of a plain request. One that does not say how long it is could hide a second one: refused."""
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    lengths = {value for name, value in headers if name == b"content-length"}
    if any(name == b"transfer-encoding" for name, _ in headers) or len(lengths) > 1:
        raise Denied("411 Length Required", "a body without a plain content-length")
    length = lengths.pop() if lengths else b"0"
    if not length.isdigit():
        raise Denied("400 Bad Request", "a content-length that is no number")
    return int(length)


def _listen(path: Path) -> socket.socket:
    """Where a dead worker left its socket, a new one takes its place. Anyone in the sandbox may connect."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o755)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    os.chmod(path, 0o666)
    listener.listen(64)
    return listener
