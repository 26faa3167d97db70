"""Ending, finding again, and cleaning up: whoever dies, nothing is lost and nothing is left."""

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.db import connections
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import Mount, SandboxError, get_sandboxes, process, reap
from environments.sandboxes.directory import directory_of, host_name, marker_of, root_directory
from environments.sandboxes.host import find_processes
from tests.environments.sandboxes.conftest import LaunchShell
from tests.environments.sandboxes.fake_gateway import body_of
from tests.environments.sandboxes.gateways import FakeGateway
from tests.environments.sandboxes.waiting import processes_with, wait_end, wait_for, wait_output

pytestmark = pytest.mark.sandbox

STUBBORN = """
trap '' TERM HUP INT
setsid bash -c "trap '' TERM HUP; echo up; while :; do sleep 0.1; : {word}; done" &
nohup bash -c "trap '' TERM; echo up; while :; do sleep 0.1; : {word}; done" &
"""


@pytest.mark.usefixtures("each_identity")
def test_tools_that_ignore_signals_and_daemons_are_gone_after_stop(launch_shell: LaunchShell) -> None:
    word = f"stubborn-{uuid4().hex}"
    handle = launch_shell(STUBBORN.format(word=word) + "wait; sleep 100")
    wait_for(lambda: handle.read_output(0).count(b"up") == 2)

    handle.stop(grace_s=0.3)

    assert processes_with(word) == []
    assert find_processes(marker_of(handle.row.id)) == []
    assert not handle.status().running
    handle.row.refresh_from_db()
    assert handle.row.stopped_at is not None


@pytest.mark.usefixtures("each_identity")
def test_a_daemon_does_not_outlive_the_harness(launch_shell: LaunchShell) -> None:
    word = f"daemon-{uuid4().hex}"
    handle = launch_shell(STUBBORN.format(word=word) + "while [ ! -e go ]; do sleep 0.05; done; exit 5")
    wait_for(lambda: handle.read_output(0).count(b"up") == 2)
    (handle.work_tree / "go").touch()

    assert wait_end(handle).exit_code == 5
    assert processes_with(word) == []


@pytest.mark.process_only
def test_eight_sandboxes_started_at_once_are_eight(launch_shell: LaunchShell) -> None:
    """Their pipes must not get into each other; only the row is written by the test's own thread."""
    with ThreadPoolExecutor(8) as threads:
        rows = [Sandbox(id=uuid4()) for _ in range(8)]
        order = launch_shell.build("echo $((6 * 7)); sleep 60")
        bwrap = str(shutil.which("bwrap"))
        handles = list(threads.map(lambda row: process.choose_and_start(bwrap, row.id, order), rows))
    for row, found in zip(rows, handles, strict=True):
        row.handle, row.directory, row.host = found, str(directory_of(row.id)), host_name()
        row.lease_expires_at = timezone.now()
        row.save()
    for row in rows:
        handle = launch_shell.sandboxes.attach(row)
        assert handle is not None
        wait_output(handle, b"42\n")
    assert len(reap()) == 8


def test_a_polite_harness_can_finish_its_last_words_when_it_is_stopped(launch_shell: LaunchShell) -> None:
    handle = launch_shell("trap 'echo saved > /logs/out; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    wait_output(handle, b"ready")
    handle.stop()
    assert (handle.logs / "out").read_text() == "saved\n"
    assert handle.status().limit == "stopped"


def test_the_last_words_of_a_harness_that_had_to_be_killed_are_kept(launch_shell: LaunchShell) -> None:
    handle = launch_shell("trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done")
    wait_output(handle, b"ready")
    handle.stop(grace_s=0.3)
    assert b"no\n" in handle.read_output(0)
    assert (handle.status().limit, handle.status().exit_code) == ("stopped", -9)


@pytest.mark.usefixtures("each_identity")
def test_a_relay_that_was_killed_is_replaced(launch_shell: LaunchShell, directories: Path) -> None:
    gateway = FakeGateway(directories / "gateway")
    gateway.start()
    client = (
        "import http.client as h\nc = h.HTTPConnection('127.0.0.1', 8100)\nc.request('GET', '/echo')\n"
        "print(c.getresponse().status)\n"
    )
    handle = launch_shell(
        f'while [ ! -e go ]; do sleep 0.02; done; /gyre/venv/bin/python -I -S -c "{client}"', gateway=True
    )
    wait_for(lambda: relays_of(handle.row.handle["pid"]))
    [relay] = relays_of(handle.row.handle["pid"])
    os.kill(relay, signal.SIGKILL)
    wait_for(lambda: relays_of(handle.row.handle["pid"]) not in ([], [relay]))
    (handle.work_tree / "go").touch()

    wait_end(handle)
    gateway.kill()
    assert handle.read_output(0) == b"200\n"


def relays_of(supervisor: int) -> list[int]:
    children = set(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split())
    return [pid for pid in processes_with("/gyre/bin/relay.py") if str(pid) in children]


@pytest.mark.django_db(transaction=True)
def test_after_kill_9_of_the_launcher_another_process_attaches_and_the_harness_finishes(
    launch_shell: LaunchShell,
) -> None:
    reading, writing = os.pipe()
    connections.close_all()
    launcher = os.fork()
    if not launcher:
        try:
            made = launch_shell("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; exit 6")
            os.write(writing, made.row.id.bytes)
            signal.pause()
        finally:
            os._exit(1)
    row_id = UUID(bytes=os.read(reading, 16))
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)

    handle = launch_shell.sandboxes.attach(Sandbox.objects.get(pk=row_id))

    assert handle is not None
    assert handle.status().running
    (handle.work_tree / "go").touch()
    assert wait_end(handle).exit_code == 6
    assert handle.read_output(0) == b"one\ntwo\n"


def test_a_sandbox_killed_from_outside_is_reported_lost(launch_shell: LaunchShell) -> None:
    handle = launch_shell("sleep 100")
    os.kill(handle.row.handle["pid"], signal.SIGKILL)
    status = wait_end(handle)
    assert (status.exit_code, status.limit) == (None, "lost")


@pytest.mark.parametrize("forged", [b"[]", b'{"running": "no"}', b"\xff" * 512, b""])
def test_a_forged_state_is_no_state(launch_shell: LaunchShell, forged: bytes) -> None:
    handle = launch_shell("sleep 100")
    os.kill(handle.row.handle["pid"], signal.SIGKILL)
    wait_end(handle)
    (handle.work_tree.parent / "state").write_bytes(forged)
    assert (handle.status().running, handle.status().limit) == (False, "lost")


def test_a_removed_sandbox_cannot_be_attached(launch_shell: LaunchShell) -> None:
    handle = launch_shell("mkdir -p a/b; chmod 000 a; sleep 100")
    handle.remove()
    handle.remove()
    assert not Path(handle.row.directory).exists()
    assert launch_shell.sandboxes.attach(handle.row) is None


@pytest.mark.usefixtures("each_identity")
def test_a_harness_reads_one_whole_answer_while_the_gateway_is_killed(
    launch_shell: LaunchShell, directories: Path
) -> None:
    gateway = FakeGateway(directories / "gateway")
    gateway.start()
    client = (
        "import http.client as h\nc = h.HTTPConnection('127.0.0.1', 8100)\n"
        "c.request('POST', '/body?size=50000&stall=20000', body=b'prompt')\nr = c.getresponse()\n"
        "print(r.read().decode(), end='')\n"
    )
    handle = launch_shell(f'/gyre/venv/bin/python -I -S -c "{client}"', gateway=True)
    wait_for(lambda: gateway.events("stalled"))
    gateway.kill()
    gateway.start()

    assert wait_end(handle).exit_code == 0
    gateway.kill()
    assert handle.read_output(0) == body_of(50_000)


def test_the_reaper_removes_what_nobody_leases_and_leaves_what_somebody_does(launch_shell: LaunchShell) -> None:
    expired, living = launch_shell("sleep 100"), launch_shell("sleep 100")
    Sandbox.objects.filter(pk=expired.row.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))

    done = reap()

    assert [str(expired.row.id) in line for line in done] == [True]
    assert not Path(expired.row.directory).exists()
    assert find_processes(marker_of(expired.row.id)) == []
    assert living.status().running
    assert reap() == []


def test_the_reaper_ends_a_sandbox_without_a_row_and_leaves_strange_directories(launch_shell: LaunchShell) -> None:
    handle = launch_shell("sleep 100")
    Sandbox.objects.all().delete()
    strange = directory_of(uuid4())
    strange.mkdir()
    assert reap() == []  # young: its row may not be committed yet

    long_ago = time.time() - 1000
    os.utime(handle.work_tree.parent / "marker", (long_ago, long_ago))

    assert len(reap()) == 1
    assert find_processes(marker_of(handle.row.id)) == []
    assert not directory_of(handle.row.id).exists()
    assert strange.exists()


def test_a_launcher_that_died_before_it_saved_the_process_leaves_no_orphan(launch_shell: LaunchShell) -> None:
    handle = launch_shell("sleep 100")
    Sandbox.objects.update(handle={}, lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert len(reap()) == 1
    assert find_processes(marker_of(handle.row.id)) == []


def test_a_launch_that_fails_says_why_and_leaves_nothing(launch_shell: LaunchShell, directories: Path) -> None:
    with pytest.raises(SandboxError, match="does not exist"):
        launch_shell("true", read_only=[Mount(source=directories / "none", target="/tests")])
    with pytest.raises(SandboxError, match="can be mounted"):
        launch_shell("true", read_only=[Mount(source=directories, target="/usr/lib")])
    with pytest.raises(SandboxError, match="set up"):
        launch_shell("true", work_tree=directories / "none")
    root = root_directory()
    assert not root.exists() or list(root.iterdir()) == []


def test_a_command_that_does_not_exist_ends_with_127_and_says_so(launch_shell: LaunchShell) -> None:
    handle = launch_shell("", command=["no-such-program"])
    assert wait_end(handle).exit_code == 127
    assert handle.read_output(0) == b"sandbox: cannot start no-such-program: No such file or directory\n"


def test_kinds_that_do_not_isolate_are_refused_by_name() -> None:
    for kind in ("host", "none"):
        with pytest.raises(SandboxError, match=f'"{kind}"'):
            get_sandboxes(kind)


def test_without_bubblewrap_the_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    process.check_bubblewrap.cache_clear()
    said = get_sandboxes("process").check()
    process.check_bubblewrap.cache_clear()
    assert said is not None
    assert "install the package bubblewrap" in said
