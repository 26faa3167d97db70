"""The proxy lets through what is named, and says and records why it lets nothing else through. Loopback only."""

import http.client
import http.server
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from environments.egress.proxy import Asked, Limits, Proxy
from environments.egress.rules import parse_rule

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
StartProxy = Callable[..., Proxy]


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(
            f"{self.command} {self.path} {self.headers['host']} {self.headers.get('proxy-authorization')}".encode()
        )

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[int]:
    """Port of a web server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def asked() -> list[Asked]:
    """Every request that is over, in order."""
    return []


@pytest.fixture
def start(tmp_path: Path, asked: list[Asked]) -> Iterator[StartProxy]:
    started: list[Proxy] = []

    def record(one: Asked, over: bool) -> None:
        if over:
            asked.append(one)

    def start(*rules: str, opened=LOOPBACK, limits: Limits | None = None, address: str = "127.0.0.1") -> Proxy:
        names = {"site.test": [address], "mixed.test": ["10.0.0.1", "127.0.0.1"]}

        def resolve(host: str, port: int) -> list[str]:
            if host not in names:
                raise OSError("no such name")
            return names[host]

        proxy = Proxy(
            tmp_path / "egress" / "proxy.sock",
            rules=[parse_rule(rule) for rule in rules],
            opened=opened,
            record=record,
            limits=limits,
            resolve=resolve,
        )
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        proxy.close()


def say(proxy: Proxy, text: str) -> bytes:
    """Everything that comes back for these bytes."""
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(10)
        client.connect(str(proxy.path))
        client.sendall(text.encode())
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer


def tunnel(proxy: Proxy, target: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(str(proxy.path))
    client.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode())
    assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    return client


def wait_for(asked: list[Asked], number: int = 1) -> list[Asked]:
    deadline = time.monotonic() + 10
    while len(asked) < number and time.monotonic() < deadline:
        time.sleep(0.01)
    return asked


def test_a_plain_request_goes_through_with_a_head_of_its_own(start: StartProxy, site: int, asked: list[Asked]) -> None:
    proxy = start(f"site.test:{site}")
    answer = say(
        proxy,
        f"GET http://site.test:{site}/a?b=1 HTTP/1.1\r\nhost: elsewhere.test\r\nproxy-authorization: secret\r\n\r\n",
    )
    assert answer.endswith(f"GET /a?b=1 site.test:{site} None".encode())
    [only] = wait_for(asked)
    assert (only.method, only.host, only.port, only.verdict, only.reason) == ("GET", "site.test", site, "allowed", "")
    assert only.sent_bytes > 20
    assert only.received_bytes > len(b"GET /a?b=1")


def test_a_body_goes_through_and_nothing_behind_it(start: StartProxy, site: int) -> None:
    proxy = start(f"site.test:{site}")
    answer = say(
        proxy,
        f"POST http://site.test:{site}/ HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello"
        f"GET /smuggled HTTP/1.1\r\nhost: site.test\r\n\r\n",
    )
    assert answer.endswith(b"\r\n\r\nhello")
    assert answer.count(b"HTTP/1.1 200") == 1


def test_a_tunnel_carries_whatever_it_is_given(start: StartProxy, site: int, asked: list[Asked]) -> None:
    with closing(tunnel(start(f"site.test:{site}"), f"site.test:{site}")) as client:
        connection = http.client.HTTPConnection("site.test", site)
        connection.sock = client
        connection.request("GET", "/x")
        assert connection.getresponse().read().startswith(b"GET /x")
    assert wait_for(asked)[0].method == "CONNECT"


@pytest.mark.parametrize(
    ("request_line", "status", "reason"),
    [
        ("CONNECT other.test:443 HTTP/1.1", "403", "not among the task's allowed hosts"),
        ("CONNECT site.test:22 HTTP/1.1", "403", "not among the task's allowed hosts"),
        ("CONNECT 127.0.0.1:443 HTTP/1.1", "403", "an address instead of a name"),
        ("CONNECT 2130706433:443 HTTP/1.1", "403", "an address instead of a name"),
        ("CONNECT [::1]:443 HTTP/1.1", "403", "an address instead of a name"),
        ("CONNECT gone.test:443 HTTP/1.1", "502", "cannot be resolved"),
        ("GET /relative HTTP/1.1", "400", "absolute http:// address"),
        ("GET http://site.test@other.test/ HTTP/1.1", "400", "absolute http:// address"),
        ("GET https://site.test/ HTTP/1.1", "400", "absolute http:// address"),
        ("nonsense", "400", "no HTTP/1 request"),
    ],
)
def test_what_is_not_named_is_refused_in_words(
    start: StartProxy, asked: list[Asked], request_line: str, status: str, reason: str
) -> None:
    answer = say(start("site.test", "gone.test"), f"{request_line}\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert reason.encode() in answer
    assert reason in wait_for(asked)[0].reason
    assert asked[0].verdict == ("failed" if status == "502" else "denied")


def test_a_body_without_a_length_is_refused(start: StartProxy, site: int) -> None:
    head = f"POST http://site.test:{site}/ HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert say(start(f"site.test:{site}"), head).startswith(b"HTTP/1.1 411 ")


def test_a_name_that_leads_to_a_private_address_is_refused(start: StartProxy, site: int, asked: list[Asked]) -> None:
    proxy = start(f"site.test:{site}", opened=[])
    assert say(proxy, f"CONNECT site.test:{site} HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert wait_for(asked)[0].reason == "its address is private"


def test_of_several_addresses_only_one_that_may_be_reached_is_used(start: StartProxy, site: int) -> None:
    tunnel(start(f"mixed.test:{site}"), f"mixed.test:{site}").close()


def test_bytes_are_bounded_over_all_requests(start: StartProxy, site: int, asked: list[Asked]) -> None:
    proxy = start(f"site.test:{site}", limits=Limits(total_bytes=300))
    body = "x" * 400
    say(proxy, f"POST http://site.test:{site}/ HTTP/1.1\r\ncontent-length: 400\r\n\r\n{body}")
    assert wait_for(asked)[0].reason == "cut: the rollout's bytes are used up"
    answer = say(proxy, f"GET http://site.test:{site}/ HTTP/1.1\r\n\r\n")
    assert b"bytes are used up" in answer


def test_a_tunnel_that_does_nothing_is_cut(start: StartProxy, site: int, asked: list[Asked]) -> None:
    with closing(tunnel(start(f"site.test:{site}", limits=Limits(idle_s=0.1)), f"site.test:{site}")) as client:
        assert client.recv(100) == b""
    assert "idle too long" in wait_for(asked)[0].reason


def test_closing_cuts_what_is_open_and_records_it_and_it_can_be_opened_again(
    start: StartProxy, site: int, asked: list[Asked]
) -> None:
    proxy = start(f"site.test:{site}")
    with closing(tunnel(proxy, f"site.test:{site}")) as client:
        proxy.close()
        assert client.recv(100) == b""
    assert len(asked) == 1
    assert not proxy.path.exists()
    tunnel(start(f"site.test:{site}"), f"site.test:{site}").close()
