"""The relay carries HTTP exactly, and hides the death of a gateway. It runs here as a plain process."""

import hashlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.sandboxes import relay as relay_program
from tests.environments.sandboxes.fake_gateway import body_of
from tests.environments.sandboxes.gateways import FakeGateway
from tests.environments.sandboxes.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    (tmp_path / "gateway").mkdir()
    fake = FakeGateway(tmp_path / "gateway")
    yield fake
    fake.kill()


@pytest.fixture
def port(gateway: FakeGateway) -> Iterator[int]:
    """Where a relay listens that is bound to the fake gateway."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = [sys.executable, "-I", "-S", relay_program.__file__, str(listener.fileno()), str(gateway.socket)]
        process = subprocess.Popen(words, pass_fds=[listener.fileno()])
        yield listener.getsockname()[1]
        process.kill()
        process.wait()


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def ask(port: int, method: str, target: str, **more: Any) -> http.client.HTTPResponse:
    connection = connect(port)
    connection.request(method, target, **more)
    return connection.getresponse()


def read_raw(port: int, request: bytes) -> bytes:
    """All that comes back on a plain socket until the relay closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(request)
        received = b""
        while data := client.recv(65536):
            received += data
        return received


def test_a_request_arrives_unchanged_but_for_the_relays_own_headers(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    headers = {"X-Api-Key": "k", "x-gyre-relay-offset": "5", "Connection": "keep-alive, x-hop", "X-Hop": "1"}

    said = json.loads(ask(port, "POST", "/s/key/v1/chat?beta=true", body=b"\0\xff", headers=headers).read())

    names = [name.lower() for name, _ in said["headers"]]
    values = {name.lower(): value for name, value in said["headers"]}
    assert (said["method"], said["target"], said["size"]) == ("POST", "/s/key/v1/chat?beta=true", 2)
    assert said["sha256"] == hashlib.sha256(b"\0\xff").hexdigest()
    assert values["x-api-key"] == "k"
    assert values["x-gyre-relay-offset"] == "0"
    assert names.count("x-gyre-relay-offset") == 1
    assert len(bytes.fromhex(values["x-gyre-relay-call"])) == 16
    assert "x-hop" not in names


def test_one_connection_carries_many_requests_and_head_has_no_body(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    connection = connect(port)

    for method, size in (("HEAD", 0), ("GET", None), ("HEAD", 0), ("POST", None)):
        connection.request(method, "/echo", body=b"x" if method == "POST" else None)
        sock = connection.sock
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200
        assert len(body) == 0 if size == 0 else json.loads(body)["method"] == method
        assert connection.sock is sock

    assert len({event["call"] for event in gateway.events()}) >= 4


def test_a_chunked_request_arrives_whole(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    pieces = [b"a" * 70_000, b"b", b"c" * 3]

    said = json.loads(ask(port, "POST", "/echo", body=iter(pieces), encode_chunked=True).read())

    assert said["size"] == 70_004
    assert said["sha256"] == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_a_client_that_waits_for_100_continue_gets_it(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abc")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_of_forty_megabytes_passes_both_ways(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    big = body_of(40_000_000)

    said = json.loads(ask(port, "POST", "/echo", body=big).read())
    back = ask(port, "GET", "/body?size=40000000").read()

    assert said["sha256"] == hashlib.sha256(big).hexdigest()
    assert back == big


def test_what_the_gateway_sends_is_passed_on_at_once(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    response = ask(port, "GET", "/body?size=5000&stall=1500")
    assert response.read(1500) == body_of(1500)  # the gateway has not ended, and will not


@pytest.mark.parametrize("kind", ["body", "sized"])
def test_a_gateway_killed_in_the_body_is_nothing_the_client_sees(gateway: FakeGateway, port: int, kind: str) -> None:
    gateway.start()
    response = ask(port, "POST", f"/{kind}?size=100000&stall=12345", body=b"prompt")
    start = response.read(12345)
    gateway.kill()
    threading.Timer(0.3, gateway.start).start()

    rest = response.read()

    assert start + rest == body_of(100_000)
    calls = [event for event in gateway.events() if event["path"] != "/relay/ack"]
    assert calls[0]["offset"] == 0
    assert calls[-1]["offset"] == 12345
    assert len({event["call"] for event in calls}) == 1
    wait_for(lambda: gateway.acks() == [calls[0]["call"]])


def test_a_gateway_that_is_not_there_yet_is_waited_for(gateway: FakeGateway, port: int) -> None:
    threading.Timer(0.3, gateway.start).start()
    assert ask(port, "GET", "/echo").status == 200


@pytest.mark.parametrize("path", ["/retry", "/drop"])
def test_a_refusal_that_may_be_repeated_is_repeated_as_the_same_call(
    gateway: FakeGateway, port: int, path: str
) -> None:
    gateway.start()
    threading.Timer(0.2, gateway.open_gate).start()

    assert ask(port, "GET", path).status == 200

    calls = [event["call"] for event in gateway.events() if event["path"] == path]
    assert len(calls) >= 2
    assert len(set(calls)) == 1


def test_a_client_that_hangs_up_closes_the_gateways_connection(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    connection = connect(port)
    connection.request("GET", "/body?size=5000&stall=1500")
    connection.getresponse().read(1500)
    connection.close()
    wait_for(lambda: gateway.events("hang_up"), 5)


def test_a_client_that_hangs_up_while_no_gateway_is_there_is_forgotten(gateway: FakeGateway, port: int) -> None:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
    client.close()
    gateway.start()
    assert ask(port, "GET", "/body?size=1").read() == b"0"
    time.sleep(1.2)  # longer than the longest pause between two tries
    assert [event["path"] for event in gateway.events()].count("/echo") <= 1


def test_eight_calls_at_once_do_not_wait_for_each_other(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    stalled = [ask(port, "GET", "/body?size=5000&stall=1500") for _ in range(8)]
    assert ask(port, "GET", "/body?size=10").read() == body_of(10)
    assert all(response.read(1500) == body_of(1500) for response in stalled)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 30_000, b"431"),
    ],
)
def test_what_is_no_request_is_answered_and_closed(port: int, request_bytes: bytes, status: bytes) -> None:
    assert read_raw(port, request_bytes).split(b" ")[1] == status


def test_an_http_1_0_client_gets_a_body_without_chunks(gateway: FakeGateway, port: int) -> None:
    gateway.start()
    head, _, body = read_raw(port, b"GET /body?size=3000 HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert body == body_of(3000)
    assert b"transfer-encoding" not in head.lower()


@pytest.fixture
def impatient_port(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A relay in a thread of the test, that gives a client up soon."""
    monkeypatch.setattr(relay_program, "CLIENT_IDLE_S", 0.2)
    monkeypatch.setattr(relay_program, "CLIENT_STUCK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = relay_program.Relay(listener, str(gateway.socket))
        threading.Thread(target=relay.serve, daemon=True).start()
        yield listener.getsockname()[1]


def test_a_client_that_sends_half_a_request_is_given_up(impatient_port: int) -> None:
    assert read_raw(impatient_port, b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nhal") == b""


def test_a_client_that_takes_nothing_is_given_up_and_so_is_its_call(gateway: FakeGateway, impatient_port: int) -> None:
    gateway.start()
    with socket.create_connection(("127.0.0.1", impatient_port)) as client:
        client.sendall(b"GET /body?size=30000000&stall=25000000 HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_for(lambda: gateway.events() != [])
        received = 0
        wait_for(lambda: relay_threads() == 0)
        while data := client.recv(1 << 20):
            received += len(data)
    assert received < 25_000_000
    assert gateway.events("stalled") == []


def relay_threads() -> int:
    return sum("serve_client" in thread.name for thread in threading.enumerate())
