"""The harness's end of the wire: HTTP on the sandbox's loopback, passed to the gateway through a unix socket.

From:  the harness's HTTP client; started by supervisor.py with the listening socket, in every sandbox that may call.
To:    the gateway, with `x-gyre-relay-call` (random id of this request) and `x-gyre-relay-offset` (bytes of the body
       that the harness already has); at the end `POST /relay/ack`.
Holds: whatever happens to the gateway, the harness sees one response, each byte once, or silence until it goes on;
       a harness that hangs up closes the upstream connection at once.
Never: looks into a body, or has a read deadline on the model call; a slow or stuck client costs one thread and one body.

One thread a connection. A request is read whole (it may have to be repeated), a response is passed on as it comes.
"""

import contextlib
import os
import queue
import select
import socket
import sys
import threading
import time

GATEWAY_SOCKET = "/gyre/gateway/gateway.sock"
MAX_CONNECTIONS = 256
MAX_HEAD_BYTES = 128 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_BODIES_BYTES = 1024 * 1024 * 1024
CLIENT_IDLE_S = 900.0
CLIENT_STUCK_S = 600.0
FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0
MISMATCH_S = 60.0
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate te trailer transfer-encoding upgrade expect "
    b"content-length".split()
)


class BadRequest(Exception):
    """What the client sent is no HTTP/1.1 request that we carry; it is answered with this status, then closed."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class ClientGone(Exception):
    """The harness hung up, or took nothing for too long."""


class Broken(Exception):
    """The gateway's connection ended before the response did."""


class Request:
    def __init__(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], minor: bytes) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.minor = minor
        self.body = b""

    def get(self, name: bytes) -> bytes:
        return b", ".join(value for key, value in self.headers if key.lower() == name)

    @property
    def keeps_connection(self) -> bool:
        wish = self.get(b"connection").lower()
        return b"close" not in wish if self.minor == b"1" else b"keep-alive" in wish


class Reader:
    """Bytes of one socket, with what was received too early kept for the next read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()

    def fill(self, size: int = 65536) -> bool:
        data = self.sock.recv(size)
        self.buffer += data
        return bool(data)

    def take(self, size: int) -> bytes:
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def take_line(self, limit: int) -> bytes | None:
        """One line without its end; None where it is not here yet."""
        end = self.buffer.find(b"\n")
        if end < 0:
            if len(self.buffer) > limit:
                raise BadRequest("400 Bad Request")
            return None
        return self.take(end + 1).rstrip(b"\r\n")


def parse_head(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """First line and headers; a folded header line belongs to the one before."""
    first, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        if line[:1] in (b" ", b"\t") and headers:
            headers[-1] = (headers[-1][0], headers[-1][1] + b" " + line.strip())
            continue
        name, colon, value = line.partition(b":")
        if colon:
            headers.append((name.strip(), value.strip()))
    return first, headers


def take_head(reader: Reader) -> bytes | None:
    ends = [(reader.buffer.find(mark), len(mark)) for mark in (b"\r\n\r\n", b"\n\n")]
    found = [(at, size) for at, size in ends if at >= 0]
    if not found:
        if len(reader.buffer) > MAX_HEAD_BYTES:
            raise BadRequest("431 Request Header Fields Too Large")
        return None
    at, size = min(found)
    return reader.take(at + size)[:-size]


class Connection:
    """One connection of the harness: requests one after the other."""

    def __init__(self, relay: "Relay", sock: socket.socket) -> None:
        self.relay = relay
        self.sock = sock
        self.reader = Reader(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        held = 0
        try:
            while True:
                self.sock.settimeout(CLIENT_IDLE_S)
                request = self.read_request()
                if request is None:
                    return
                self.relay.hold_bytes(len(request.body))
                held = len(request.body)
                whole = Exchange(self, request).run()
                self.relay.hold_bytes(-held)
                held = 0
                if not (whole and request.keeps_connection):
                    return
        except BadRequest as error:
            with contextlib.suppress(OSError):
                text = f"HTTP/1.1 {error.status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                self.sock.sendall(text.encode())
        except (ClientGone, OSError):
            pass  # the harness is gone: nothing to tell it
        finally:
            self.relay.hold_bytes(-held)
            self.sock.close()

    def read_request(self) -> Request | None:
        """The next whole request; None where the harness closed between requests."""
        while (head := take_head(self.reader)) is None:
            if not self.reader.fill():
                return None
        first, headers = parse_head(head.lstrip(b"\r\n"))
        parts = first.split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            raise BadRequest("400 Bad Request")
        request = Request(parts[0], parts[1], headers, parts[2][-1:])
        self.read_body(request)
        return request

    def read_body(self, request: Request) -> None:
        chunked = b"chunked" in request.get(b"transfer-encoding").lower()
        length = request.get(b"content-length")
        if length and (chunked or not length.isdigit()):
            raise BadRequest("400 Bad Request")
        if length and int(length) > MAX_BODY_BYTES:
            raise BadRequest("413 Content Too Large")
        if request.get(b"expect").lower() == b"100-continue" and not self.reader.buffer:
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if chunked:
            request.body = self.read_chunked()
        elif length:
            request.body = self.read_exactly(int(length))

    def read_exactly(self, size: int) -> bytes:
        while len(self.reader.buffer) < size:
            if not self.reader.fill(min(1 << 20, max(65536, size - len(self.reader.buffer)))):
                raise ClientGone
        return self.reader.take(size)

    def read_line(self) -> bytes:
        while (line := self.reader.take_line(MAX_HEAD_BYTES)) is None:
            if not self.reader.fill():
                raise ClientGone
        return line

    def read_chunked(self) -> bytes:
        body = bytearray()
        while size := parse_chunk_size(self.read_line()):
            if len(body) + size > MAX_BODY_BYTES:
                raise BadRequest("413 Content Too Large")
            body += self.read_exactly(size)
            if self.read_line():
                raise BadRequest("400 Bad Request")
        while self.read_line():
            pass  # trailers
        return bytes(body)


def parse_chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0].strip(), 16)
    except ValueError:
        raise BadRequest("400 Bad Request") from None


class Exchange:
    """One call: the same request to one gateway after the other, until its response is delivered whole."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self.connection = connection
        self.client = connection.sock
        self.request = request
        self.call = os.urandom(16).hex().encode()
        self.delivered = 0
        self.status: bytes | None = None
        self.mismatch_until = 0.0
        self.resumable = False
        self.chunked = False

    def run(self) -> bool:
        """Returns whether the harness's connection can carry another request."""
        self.client.settimeout(CLIENT_STUCK_S)
        backoff = FIRST_BACKOFF_S
        while True:
            before = self.delivered
            try:
                reusable = self.attempt()
            except Broken:
                if self.status is not None and not self.resumable:
                    raise ClientGone from None  # it did not promise to go on: cut, as it was cut
                if self.delivered > before:
                    backoff = FIRST_BACKOFF_S
                self.wait(backoff)
                backoff = min(LAST_BACKOFF_S, backoff * 2)
                continue
            if self.resumable:
                self.connection.relay.acknowledge(self.call)
            return reusable

    def wait(self, seconds: float) -> None:
        """Sleep, unless the harness hangs up meanwhile."""
        poll = select.poll()
        poll.register(self.client, select.POLLRDHUP)
        if poll.poll(seconds * 1000):
            raise ClientGone

    def attempt(self) -> bool:
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(self.connection.relay.gateway)
            upstream.sendall(self.head())
            self.send_body(upstream)
            return self.take_response(Reader(upstream))
        except (ConnectionError, FileNotFoundError, PermissionError) as error:
            raise Broken from error
        finally:
            upstream.close()

    def head(self) -> bytes:
        request = self.request
        dropped = HOP_BY_HOP | {name.strip().lower() for name in request.get(b"connection").split(b",")}
        lines = [request.method + b" " + request.target + b" HTTP/1.1"]
        for name, value in request.headers:
            if name.lower() not in dropped and not name.lower().startswith(b"x-gyre-relay"):
                lines.append(name + b": " + value)
        lines.append(b"content-length: %d" % len(request.body))
        lines.append(b"x-gyre-relay-call: " + self.call)
        lines.append(b"x-gyre-relay-offset: %d" % self.delivered)
        lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def send_body(self, upstream: socket.socket) -> None:
        """Upstream may answer (413) or die before it took all; what it said is still read then."""
        with contextlib.suppress(BrokenPipeError):
            upstream.sendall(self.request.body)

    def receive(self, reader: Reader) -> bool:
        """Wait without a deadline for more of the response, or for the harness to hang up."""
        poll = select.poll()
        poll.register(reader.sock, select.POLLIN)
        poll.register(self.client, select.POLLRDHUP)
        ready = dict(poll.poll())
        if self.client.fileno() in ready:
            raise ClientGone
        return reader.fill()

    def take_response(self, reader: Reader) -> bool:
        status, headers = self.read_head(reader)
        values = {name.lower(): value for name, value in headers}
        if status[:3] == b"503" and values.get(b"x-gyre-relay-retry") == b"1":
            raise Broken
        resumable = b"x-gyre-relay" in values
        if self.status is None:
            self.status, self.resumable = status, resumable
            self.begin(status, headers, values)
        elif status[:3] != self.status[:3] or not resumable:
            self.refuse_mismatch()
        if self.request.method == b"HEAD" or status[:3] in (b"204", b"304"):
            return True
        if b"chunked" in values.get(b"transfer-encoding", b"").lower():
            self.pass_chunked(reader)
        elif b"content-length" in values:
            self.pass_exactly(reader, int(values[b"content-length"]))
        else:
            self.pass_until_end(reader)
        if self.chunked:
            self.send(b"0\r\n\r\n")
        return self.reusable

    def read_head(self, reader: Reader) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        while True:
            try:
                head = take_head(reader)
            except BadRequest as error:
                raise Broken from error
            if head is None:
                if not self.receive(reader):
                    raise Broken
                continue
            first, headers = parse_head(head)
            status = first.partition(b" ")[2]
            if not status.startswith(b"1"):  # an interim response says nothing to the harness
                return status, headers

    def begin(self, status: bytes, headers: list[tuple[bytes, bytes]], values: dict[bytes, bytes]) -> None:
        """Send the head once; from here on the harness knows how long the body is, or that it comes in chunks."""
        lines = [b"HTTP/1.1 " + status]
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP and not name.lower().startswith(b"x-gyre-relay"):
                lines.append(name + b": " + value)
        has_body = self.request.method != b"HEAD" and status[:3] not in (b"204", b"304")
        self.reusable = True
        if b"content-length" in values:
            lines.append(b"content-length: " + values[b"content-length"])
        elif has_body and self.request.minor == b"1":
            self.chunked = True
            lines.append(b"transfer-encoding: chunked")
        elif has_body:
            self.reusable = False
        if not (self.reusable and self.request.keeps_connection):
            lines.append(b"connection: close")
        elif self.request.minor == b"0":
            lines.append(b"connection: keep-alive")
        self.send(b"\r\n".join(lines) + b"\r\n\r\n")

    def refuse_mismatch(self) -> None:
        """Another answer than the one begun cannot be joined to it: try on for a minute, then cut, never mix."""
        now = time.monotonic()
        self.mismatch_until = self.mismatch_until or now + MISMATCH_S
        if now < self.mismatch_until:
            raise Broken
        raise ClientGone

    def pass_chunked(self, reader: Reader) -> None:
        """Everything received is passed on at once, also parts of chunks."""
        left = 0
        while True:
            pieces: list[bytes] = []
            try:
                left, ended = take_chunks(reader, left, pieces)
            finally:
                self.deliver(b"".join(pieces))
            if ended:
                return
            if not self.receive(reader):
                raise Broken

    def pass_exactly(self, reader: Reader, left: int) -> None:
        while left:
            if not reader.buffer and not self.receive(reader):
                raise Broken
            data = reader.take(left)
            left -= len(data)
            self.deliver(data)

    def pass_until_end(self, reader: Reader) -> None:
        """No framing: the end of the connection is the end, unless the gateway promised to resume (then it is a break)."""
        while True:
            self.deliver(reader.take(len(reader.buffer)))
            if not self.receive(reader):
                if self.resumable:
                    raise Broken
                return

    def deliver(self, data: bytes) -> None:
        if data:
            self.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
            self.delivered += len(data)

    def send(self, data: bytes) -> None:
        try:
            self.client.sendall(data)
        except OSError as error:
            raise ClientGone from error


def take_chunks(reader: Reader, left: int, pieces: list[bytes]) -> tuple[int, bool]:
    """Decode what is buffered into `pieces`.

    left: bytes still to come of the open chunk with its line end (0: none is open). Returns it anew, and whether the
    terminating chunk with its trailers has come. Bytes that are no chunks are a broken connection.
    """
    while reader.buffer:
        if left > 2:
            piece = reader.take(left - 2)
            pieces.append(piece)
            left -= len(piece)
        elif left:
            left -= len(reader.take(left))
        else:
            try:
                end = reader.buffer.find(b"\n")
                if end < 0:
                    return 0, False
                size = parse_chunk_size(bytes(reader.buffer[:end]).rstrip(b"\r"))
            except BadRequest as error:
                raise Broken from error
            if size == 0:
                return take_trailers(reader, end)
            reader.take(end + 1)
            left = size + 2
    return left, False


def take_trailers(reader: Reader, end: int) -> tuple[int, bool]:
    """The last chunk is whole when an empty line follows it; until then it stays in the buffer."""
    rest = bytes(reader.buffer[end + 1 :])
    return 0, rest.startswith((b"\r\n", b"\n")) or b"\r\n\r\n" in rest


class Relay:
    def __init__(self, listener: socket.socket, gateway: str = GATEWAY_SOCKET) -> None:
        self.listener = listener
        self.gateway = gateway
        self.slots = threading.Semaphore(MAX_CONNECTIONS)
        self.lock = threading.Lock()
        self.held_bytes = 0
        self.acks: queue.Queue[bytes] = queue.Queue(maxsize=1000)

    def serve(self) -> None:
        threading.stack_size(512 * 1024)
        threading.Thread(target=self.send_acks, daemon=True).start()
        while True:
            self.slots.acquire()  # more connections wait in the backlog
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve_client, args=(client,), daemon=True).start()

    def serve_client(self, client: socket.socket) -> None:
        try:
            Connection(self, client).serve()
        finally:
            self.slots.release()

    def hold_bytes(self, size: int) -> None:
        with self.lock:
            if size > 0 and self.held_bytes + size > MAX_BODIES_BYTES:
                raise BadRequest("503 Service Unavailable")
            self.held_bytes += size

    def acknowledge(self, call: bytes) -> None:
        with contextlib.suppress(queue.Full):
            self.acks.put_nowait(call)

    def send_acks(self) -> None:
        """Best effort: the gateway forgets an answer by itself after a while."""
        while True:
            call = self.acks.get()
            body = b'{"call": "%b"}' % call
            head = b"POST /relay/ack HTTP/1.1\r\nhost: gateway\r\nx-gyre-relay-call: %b\r\n" % call
            head += b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as upstream:
                upstream.settimeout(5)
                upstream.connect(self.gateway)
                upstream.sendall(head + body)
                upstream.recv(4096)


def main() -> None:
    """argv: the descriptor of the listening socket, and the gateway's socket where it is not at the usual place."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    Relay(listener, *sys.argv[2:3]).serve()


if __name__ == "__main__":
    main()
