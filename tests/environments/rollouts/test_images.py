"""A rollout whose task needs an image, or a network: what it gets, and what it says where it cannot have it."""

import http.server
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.models import EgressRequest, Image, Rollout, Task
from environments.rollouts import request_cancel
from tests.environments.images.conftest import UNREACHABLE, local_image
from tests.environments.rollouts.conftest import MakeRollout, drive

__all__ = ["local_image"]

pytestmark = pytest.mark.docker
ASK = """
import socket
for target in ("localhost:{port}", "other.test:80"):
    with socket.create_connection(("127.0.0.1", 8101)) as sock:
        sock.sendall(b"GET http://%s/ HTTP/1.1\\r\\n\\r\\n" % target.encode())
        print(sock.makefile("rb").read())
"""


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gyre-i-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def in_container(make_rollout: MakeRollout, local_image: str, settings, tmp_path: Path, short_directory: Path):
    """make(command, toml=...) -> a rollout whose task works in a container of the small image."""
    for path in (tmp_path, *list(tmp_path.parents)[:2]):
        path.chmod(0o755)
    settings.RUNTIME_DIR = short_directory
    settings.GATEWAY_SOCKET_DIR = short_directory / "gateway"
    settings.IMAGE_BUILD_NETWORK = "none"

    def make(command: str = "true", *, toml: str = '[environment]\ndocker_image = "gyre-test-local:1"\n', **budgets):
        rollout = make_rollout(command, toml=toml, **budgets)
        Task.objects.update(image="gyre-test-local:1")
        rollout.refresh_from_db()
        return rollout

    return make


@pytest.fixture
def site() -> Iterator[int]:
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from the site")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_task_with_an_image_runs_in_it_and_is_scored(in_container) -> None:
    rollout = drive(in_container("test -e /usr/bin/python3 || echo no python here; printf good > out.txt"))
    assert (rollout.outcome, rollout.reward) == ("completed", 1.0), rollout.error
    assert "no python here" in rollout.harness_output
    assert Image.objects.get().last_used_at is not None


def test_without_its_image_a_rollout_ends_unscored_and_says_what_to_do(in_container) -> None:
    rollout = drive(in_container(toml=f'[environment]\ndocker_image = "{UNREACHABLE}"\n'))
    assert (rollout.state, rollout.outcome, rollout.reward) == (Rollout.State.ENDED, "image_unavailable", None)
    assert f"{UNREACHABLE} is not on this host and cannot be pulled" in rollout.error
    assert rollout.setup_failures == 0
    assert not rollout.sandboxes.exists()
    assert not rollout.sessions.exists()


def test_a_rollout_can_be_cancelled_while_its_image_is_made(in_container, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, finish = threading.Event(), threading.Event()

    def make_slowly(row: Image, progress: object) -> str:
        begun.set()
        finish.wait(60)
        return row.image_id

    monkeypatch.setattr("environments.images.ensure._make_one", make_slowly)
    rollout = in_container()
    driver = threading.Thread(target=drive, args=(rollout,))
    driver.start()
    assert begun.wait(60)
    request_cancel(rollout.pk)
    driver.join(60)
    finish.set()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.outcome) == (Rollout.State.ENDED, "cancelled")


@pytest.mark.slow
def test_named_hosts_are_reached_others_are_not_and_the_attempt_is_a_flag(in_container, site: int, settings) -> None:
    settings.EGRESS_PRIVATE = ["127.0.0.0/8", "::1/128"]
    toml = f'[environment]\ndocker_image = "gyre-test-local:1"\nallowed_hosts = ["localhost:{site}"]\n'
    command = f"echo $HTTP_PROXY; /gyre/python/bin/python3 -c '{ASK.format(port=site)}'"
    rollout = drive(in_container(command, toml=toml))
    assert "http://127.0.0.1:8101" in rollout.harness_output, rollout.error
    assert "hello from the site" in rollout.harness_output
    assert "not among the task" in rollout.harness_output
    allowed, denied = EgressRequest.objects.filter(rollout=rollout).order_by("verdict")
    assert (allowed.host, allowed.port, allowed.verdict, denied.verdict) == ("localhost", site, "allowed", "denied")
    assert allowed.received_bytes > 100
    [flag] = [flag for flag in rollout.flags if flag["kind"] == "network_tried"]
    assert flag["evidence"].startswith("other.test:80 (")
    assert not list((settings.RUNTIME_DIR / "egress").iterdir())
