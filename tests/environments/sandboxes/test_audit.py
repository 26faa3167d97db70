"""`manage.py audit sandboxes`: what this host has, what should not be there, and being rid of it."""

import json
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import Handle, engine_client
from environments.sandboxes.directory import directory_of, marker_of
from environments.sandboxes.host import find_processes
from tests.environments.sandboxes.conftest import LaunchShell
from tests.environments.sandboxes.waiting import wait_output

pytestmark = pytest.mark.sandbox


def audit(*words: str) -> tuple[int, dict[str, Any]]:
    """(exit code, report)."""
    out = StringIO()
    code = 0
    try:
        call_command("audit", "sandboxes", "--json", *words, stdout=out)
    except SystemExit as error:
        code = int(error.code or 0)
    return code, json.loads(out.getvalue())


def entry_of(report: dict[str, Any], handle: Handle) -> dict[str, Any]:
    (found,) = [entry for entry in report["sandboxes"] if entry["sandbox"] == str(handle.row.id)]
    return found


@pytest.fixture
def running(launch_shell: LaunchShell) -> Iterator[Handle]:
    handle = launch_shell("echo up; sleep 600")
    wait_output(handle, b"up\n")
    yield handle
    handle.remove()


def traces_of(handle: Handle) -> list[str]:
    """What the host really has of it, seen without the audit."""
    found = ["directory"] if directory_of(handle.row.id).exists() else []
    found += ["process"] if find_processes(marker_of(handle.row.id)) else []
    if handle.row.kind == "docker":
        found += ["container"] if engine_client.own_containers(str(handle.row.id)) else []
        found += ["image"] if engine_client.own_images(str(handle.row.id)) else []
    return found


def test_a_sandbox_in_order_is_listed_with_its_owner_and_left_alone(running: Handle) -> None:
    code, report = audit("--clean")

    entry = entry_of(report, running)
    assert (code, report["orphans"], report["cleaned"]) == (0, 0, [])
    assert (entry["kind"], entry["purpose"], entry["problem"]) == (running.row.kind, "agent", "")
    assert entry["owner"] == f"rollout {running.row.rollout_id}"
    expected = {"row", "directory", "process"} | ({"container"} if running.row.kind == "docker" else set())
    assert set(entry["traces"]) == expected
    assert running.status().running


def test_one_without_a_row_is_an_orphan_and_cleaned_whole(running: Handle) -> None:
    running.stop()
    running.keep_image()  # docker: an image of it is left, too
    Sandbox.objects.filter(pk=running.row.pk).delete()

    code, report = audit()
    assert code == 1
    assert entry_of(report, running)["problem"] == "orphan: no row speaks of it"
    assert traces_of(running)

    code, report = audit("--clean")
    assert (code, report["sandboxes"]) == (0, [])
    assert any(str(running.row.id) in line for line in report["cleaned"])
    assert traces_of(running) == []


def test_one_that_runs_without_a_row_is_ended(running: Handle) -> None:
    Sandbox.objects.filter(pk=running.row.pk).delete()
    assert "process" in entry_of(audit()[1], running)["traces"]

    assert audit("--clean")[0] == 0
    assert traces_of(running) == []


def test_one_whose_lease_ran_out_is_an_orphan_and_its_row_says_that_it_was_stopped(running: Handle) -> None:
    past = timezone.now() - timedelta(seconds=1)
    Sandbox.objects.filter(pk=running.row.pk).update(lease_expires_at=past)
    assert entry_of(audit()[1], running)["problem"] == "orphan: its lease ran out"

    assert audit("--clean")[0] == 0
    assert traces_of(running) == []
    assert Sandbox.objects.get(pk=running.row.pk).stopped_at is not None


def test_a_row_of_which_there_is_nothing_is_named(running: Handle) -> None:
    lost = Sandbox.objects.get(pk=running.row.pk)
    lost.pk = uuid4()
    lost.directory = str(directory_of(lost.pk))
    lost.save(force_insert=True)

    code, report = audit()

    (entry,) = [entry for entry in report["sandboxes"] if entry["problem"]]
    assert (code, entry["sandbox"], entry["traces"]) == (1, str(lost.pk), ["row"])
    assert entry["problem"] == "gone: its row says that it runs"
    lost.delete()


@pytest.mark.process_only
def test_what_is_not_ours_is_neither_listed_nor_touched(launch_shell: LaunchShell, directories: Path) -> None:
    foreign = directories / "data" / "sandboxes" / str(uuid4())
    foreign.mkdir(parents=True)
    (foreign / "marker").write_text(f"gyre-sandbox:{'0' * 16}:{foreign.name}")
    os.utime(foreign / "marker", (0, 0))

    code, report = audit("--clean")

    assert (code, report["sandboxes"], report["cleaned"]) == (0, [], [])
    assert foreign.exists()


@pytest.mark.process_only
def test_the_socket_that_a_killed_container_engine_left_behind_is_in_nobodys_way(
    running: Handle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{left}")
    Sandbox.objects.filter(pk=running.row.pk).delete()

    assert entry_of(audit()[1], running)["problem"] == "orphan: no row speaks of it"
    assert audit("--clean")[0] == 0
    assert traces_of(running) == []


@pytest.mark.docker
def test_a_container_of_another_installation_is_neither_listed_nor_touched(
    launch_shell: LaunchShell, docker_image: str
) -> None:
    labels = {engine_client.OURS: "0" * 16, engine_client.SANDBOX: str(uuid4())}
    container = engine_client.client().create_container(docker_image, command=["true"], labels=labels)["Id"]
    try:
        assert audit("--clean") == (0, {"sandboxes": [], "orphans": 0, "cleaned": []})
        assert engine_client.client().inspect_container(container)
    finally:
        engine_client.remove_container(container)


@pytest.mark.process_only
def test_the_lines_for_people_say_what_to_do(running: Handle) -> None:
    Sandbox.objects.filter(pk=running.row.pk).delete()
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("audit", "sandboxes", stdout=out)
    assert "1 on this host, 1 orphans." in out.getvalue()
    assert "`manage.py audit sandboxes --clean` ends and removes orphans." in out.getvalue()
