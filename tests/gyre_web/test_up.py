"""The supervisor restarts what dies and leaves nothing behind; the installer says what it does."""

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
import redis

from gyre_web.up import supervisor as supervisor_module
from gyre_web.up.doctor import Finding, as_json, examine
from gyre_web.up.parts import Part
from gyre_web.up.ports import free_port
from gyre_web.up.processes import is_same_process, start_time
from gyre_web.up.supervisor import Supervisor, UpError, make_own_directory, running_system

SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); time.sleep(600)"


@pytest.fixture
def sleepers(monkeypatch, settings, tmp_path):
    """Two parts that only sleep, each with a child of its own, in a data directory of the test's."""
    settings.DATA_DIR = tmp_path / "data"
    settings.RUNTIME_DIR = tmp_path / "rt"
    settings.GATEWAY_SOCKET_DIR = tmp_path / "rt" / "gateway"
    parts = tuple(Part(name=name, command=(sys.executable, "-c", SLEEPER), patience_s=1.0) for name in ("one", "two"))
    monkeypatch.setattr(supervisor_module, "build_parts", lambda **_: parts)
    monkeypatch.setattr(Supervisor, "_migrate", lambda self: None)
    monkeypatch.setattr(Supervisor, "_end_detached", lambda self: None)
    monkeypatch.setattr(supervisor_module, "adopt_urls", lambda urls: None)


def wait_for(condition, timeout_s=15.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def group_members(pgid: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == pgid and fields[0] != "Z":
                members.append(int(entry.name))
    return members


@pytest.mark.usefixtures("sleepers")
def test_a_part_that_is_killed_is_started_again_and_the_other_is_left_alone():
    with running_system() as system:
        first, other = system.running["one"].process.pid, system.running["two"].process.pid
        wait_for(lambda: len(group_members(first)) == 2)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: system.running["one"].process.pid != first)
        assert group_members(first) == []
        assert system.running["two"].process.pid == other
        assert start_time(other) is not None


@pytest.mark.usefixtures("sleepers")
def test_a_machine_that_has_no_process_to_give_for_a_moment_ends_no_supervision(monkeypatch):
    monkeypatch.setattr(supervisor_module, "RETRY_S", 0.05)
    with running_system() as system:
        first, spawn, refusals = system.running["one"].process.pid, system._spawn, []

        def refuse(part: Part, num_deaths: int = 0) -> None:
            if len(refusals) < 3:
                refusals.append(part.name)
                raise BlockingIOError(11, "Resource temporarily unavailable")
            spawn(part, num_deaths)

        monkeypatch.setattr(system, "_spawn", refuse)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: system.running["one"].process.pid != first)
        assert refusals == ["one"] * 3


@pytest.mark.usefixtures("sleepers")
def test_services_that_are_killed_come_back_with_what_was_committed(monkeypatch):
    directory = Path(tempfile.mkdtemp(prefix="gyre-test-services-", dir="/var/tmp"))
    directory.chmod(0o755)
    monkeypatch.setattr(supervisor_module, "service_directory", lambda _: directory)
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv("REDIS_URL")
    with running_system() as system:
        url = system.urls["DATABASE_URL"]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table kept as select 7 as number")
        killed = [service.process.pid for service in system._services]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not {service.process.pid for service in system._services if service.process} & set(killed))
        wait_for(lambda: can_read(url))
        wait_for(lambda: can_ping(system.urls["REDIS_URL"]))


@pytest.fixture(autouse=True)
def no_directory_is_left():
    yield
    for path in Path("/var/tmp").glob("gyre-test-services-*"):
        shutil.rmtree(path)


def can_ping(url: str) -> bool:
    try:
        return bool(redis.Redis.from_url(url).ping())
    except redis.ConnectionError:
        return False


def can_read(url: str) -> bool:
    try:
        with psycopg.connect(url) as connection:
            return connection.execute("select number from kept").fetchone() == (7,)
    except psycopg.OperationalError:
        return False


@pytest.mark.usefixtures("sleepers")
def test_stopping_leaves_no_process_and_no_record(settings):
    with running_system() as system:
        pids = [running.process.pid for running in system.running.values()]
        wait_for(lambda: all(len(group_members(pid)) == 2 for pid in pids))
        assert json.loads(system.record.read_text())["processes"].keys() >= {"up", "one", "two"}
    wait_for(lambda: [group_members(pid) for pid in pids] == [[], []])  # killed, but not yet all gone
    assert not (settings.DATA_DIR / "up.json").exists()


@pytest.mark.usefixtures("sleepers")
def test_a_second_start_in_the_same_directory_is_refused_by_address(settings):
    settings.DATA_DIR.mkdir()
    entry = {"pid": os.getppid(), "started": start_time(os.getppid())}
    record = {"address": "http://127.0.0.1:8123", "processes": {"up": entry}}
    (settings.DATA_DIR / "up.json").write_text(json.dumps(record))
    with pytest.raises(UpError, match=r"already runs here, at http://127\.0\.0\.1:8123"), running_system():
        pass


def test_a_process_is_known_by_its_start_time_not_by_its_pid_alone():
    started = start_time(os.getpid())
    assert started is not None
    assert is_same_process(os.getpid(), started)
    assert not is_same_process(os.getpid(), started + 1)


def test_a_taken_port_is_replaced_by_the_next_free_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", port) != port


def test_a_runtime_directory_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UpError, match="GYRE_RUNTIME"):
        make_own_directory(tmp_path / "link", 0o711)


def test_the_doctor_fails_only_for_what_is_needed():
    broken = Finding(name="x", state="missing", detail="gone", needed=True)
    pity = Finding(name="y", state="missing", detail="gone")
    assert as_json([pity])["ok"] is True
    assert as_json([pity, broken])["ok"] is False


def test_the_doctor_says_what_each_missing_part_costs():
    assert all(finding.cost for finding in examine() if finding.state != "ok")
