"""What a program in a sandbox can reach: its own directories, the relay, and nothing else."""

import os
import socket
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings

from environments.sandboxes import Mount
from tests.environments.sandboxes.conftest import LaunchShell
from tests.environments.sandboxes.waiting import wait_end, wait_output

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("each_identity"), pytest.mark.slow]


def test_there_is_no_network(launch_shell: LaunchShell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        handle = launch_shell(
            f"(echo > /dev/tcp/127.0.0.1/{port}) 2>&1; (echo > /dev/tcp/192.0.2.1/80) 2>&1; grep -c : /proc/net/dev"
        )
        wait_end(handle)

    said = handle.read_output(0)
    assert said.count(b"Connection refused") >= 1
    assert said.count(b"Network is unreachable") >= 1
    assert said.splitlines()[-1] == b"1"  # the loopback is the only interface


def test_files_of_the_host_the_database_and_other_sandboxes_are_not_there(
    launch_shell: LaunchShell, directories: Path
) -> None:
    word = f"secret-{uuid4().hex}"
    (directories / word).write_text(word)
    other = launch_shell(f"echo {word} > /work/{word}; sleep 60")
    wait_output(other, b"")
    database = settings.DATABASES["default"]["HOST"]
    hidden = [
        directories / word,
        other.work_tree,
        Path(str(database)),
        settings.BASE_DIR / "manage.py",
        Path("/etc/shadow"),
    ]
    assert all(path.exists() for path in hidden if str(path).startswith("/"))

    tests = "; ".join(f'test -e "{path}" && echo "there: {path}"' for path in hidden)
    handle = launch_shell(f"{tests}; find / -name '{word}' -not -path '/proc/*' 2>/dev/null; ls /root /home; echo end")

    wait_end(handle)
    lines = [line for line in handle.read_output(0).decode().splitlines() if "cannot" not in line]
    assert [line for line in lines if "there:" in line or word in line] == []
    assert lines[-1] == "end"


def test_no_socket_is_visible_but_the_gateways(launch_shell: LaunchShell, directories: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directories / "gateway" / "gateway.sock"))
        handle = launch_shell("find / -type s -not -path '/proc/*' 2>/dev/null; true", gateway=True)
        wait_end(handle)
    assert handle.read_output(0) == b"/gyre/gateway/gateway.sock\n"


def test_only_its_own_directories_can_be_written(launch_shell: LaunchShell, directories: Path) -> None:
    bundle = directories / "bundle"
    bundle.mkdir(mode=0o700)  # readable for the host's user alone: still readable inside
    (bundle / "run.txt").write_text("bundled\n")
    places = (
        "/ /usr /etc /gyre /gyre/bin /gyre/gateway /gyre/harness /dev /work /logs /tmp /home/agent /gyre/run /dev/shm"
    )

    handle = launch_shell(
        f"for d in {places}; do touch $d/new 2>/dev/null && echo $d; done; cat /gyre/harness/run.txt",
        gateway=True,
        read_only=[Mount(source=bundle, target="/gyre/harness")],
    )

    wait_end(handle)
    assert handle.read_output(0).decode().split() == [
        "/work", "/logs", "/tmp", "/home/agent", "/gyre/run", "/dev/shm", "bundled",
    ]  # fmt: skip
    assert not (bundle / "new").exists()


def test_it_has_no_capability_and_cannot_get_one(launch_shell: LaunchShell) -> None:
    handle = launch_shell(
        "grep -E 'CapEff|CapPrm|CapAmb|NoNewPrivs' /proc/self/status; unshare -Ur true 2>/dev/null && echo namespace; id -u"
    )
    wait_end(handle)
    fields = handle.read_output(0).decode().split()
    assert fields[:-1] == [
        "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapAmb:", "0" * 16, "NoNewPrivs:", "1",
    ]  # fmt: skip
    assert fields[-1] != "0"


def test_the_supervisor_cannot_be_ended_from_inside(launch_shell: LaunchShell) -> None:
    handle = launch_shell("kill -9 1; kill -STOP 1; kill -TERM $PPID; sleep 0.1; exit 3")
    # its own SIGTERM is an order to end; nothing worse can be done to it
    assert wait_end(handle).exit_code in (3, -15, 143)


def test_the_environment_is_an_allow_list(launch_shell: LaunchShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_SECRET_KEY", "do not tell")
    handle = launch_shell("tr '\\0' '\\n' < /proc/1/environ 2>/dev/null; env", environment={"ASKED": "yes"})
    wait_end(handle)
    said = handle.read_output(0)
    assert b"do not tell" not in said
    assert b"ASKED=yes" in said
    assert os.environ["PATH"].encode() not in said
