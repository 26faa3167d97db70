"""A program that takes too much is held or ended, and its neighbours and the host stay as they were."""

import os
from dataclasses import replace
from uuid import uuid4

import pytest

from environments.sandboxes import cgroups, directory
from tests.environments.sandboxes.conftest import DOUBLINGS, LIMITS, MIB, LaunchShell
from tests.environments.sandboxes.waiting import processes_with, wait_end, wait_output

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("each_identity"), pytest.mark.slow]
PYTHON = "/gyre/venv/bin/python -I -S"


@pytest.mark.usefixtures("each_enforcement")
def test_a_fork_bomb_stays_small_and_is_gone_after_stop(launch_shell: LaunchShell) -> None:
    if launch_shell.is_namespace and not cgroups.parents() and os.geteuid() == 0:
        pytest.skip("the kernel does not count root's processes per user; see docs/explanation/isolation.md")
    word = f"bomb-{uuid4().hex}"
    bomb = f"import os, time\n# {word}\nprint('lit', flush=True)\n{DOUBLINGS}"
    handle = launch_shell(f'{PYTHON} -c "{bomb}"', limits=replace(LIMITS, num_processes=40))
    wait_output(handle, b"lit")

    most = max(len(processes_with(word)) for _ in range(30))
    handle.stop(grace_s=0.2)

    assert most < 2**9  # without a control group the supervisor needs a tick to see it
    assert processes_with(word) == []


@pytest.mark.usefixtures("each_enforcement")
def test_processes_that_fill_the_memory_together_are_ended(launch_shell: LaunchShell) -> None:
    eat = (
        "import os, time\nfor _ in range(8):\n  if not os.fork():\n    held = bytearray(b'x' * (60 << 20))\n"
        "    time.sleep(30)\n    os._exit(0)\ncodes = [os.wait()[1] for _ in range(8)]\nprint(codes)\nos._exit(9 in codes)\n"
    )
    handle = launch_shell(f'{PYTHON} -c "{eat}"', limits=replace(LIMITS, memory_bytes=200 * MIB))
    handle_limit = ""
    for _ in range(200):
        status = handle.status()
        handle_limit = status.limit
        if not status.running or handle_limit:
            break
        wait_output(handle, b"", 1)
    wait_end(handle, 45)
    assert handle.status().limit == "memory" or handle.status().exit_code not in (0, None)


def test_one_process_cannot_take_more_than_all_may(launch_shell: LaunchShell) -> None:
    handle = launch_shell(
        f"{PYTHON} -c \"bytearray(b'x' * (300 << 20))\"", limits=replace(LIMITS, memory_bytes=100 * MIB)
    )
    wait_end(handle)
    assert b"MemoryError" in handle.read_output(0)


def test_a_disk_that_fills_up_ends_the_harness(launch_shell: LaunchShell) -> None:
    handle = launch_shell(
        "for i in $(seq 100); do head -c 8M /dev/zero > f$i; sleep 0.02; done; sleep 30",
        limits=replace(LIMITS, disk_bytes=64 * MIB),
    )
    assert wait_end(handle).limit == "disk"


def test_deleted_files_that_are_still_open_count_as_well(launch_shell: LaunchShell) -> None:
    fill = (
        "import os, time\nkept = []\nfor n in range(100):\n  f = open('x', 'wb')\n  os.unlink('x')\n"
        "  f.write(bytes(8 << 20))\n  f.flush()\n  kept.append(f)\n  time.sleep(0.02)\ntime.sleep(30)\n"
    )
    handle = launch_shell(f'{PYTHON} -c "{fill}"', limits=replace(LIMITS, disk_bytes=64 * MIB))
    assert wait_end(handle).limit == "disk"


def test_one_file_cannot_be_longer_than_allowed(launch_shell: LaunchShell) -> None:
    handle = launch_shell("head -c 20M /dev/zero > big; stat -c %s big", limits=replace(LIMITS, file_bytes=4 * MIB))
    wait_end(handle)
    assert handle.read_output(0).split()[-1] == str(4 * MIB).encode()


def test_cpu_time_ends_it_too(launch_shell: LaunchShell) -> None:
    handle = launch_shell("(while :; do :; done) & (while :; do :; done) & wait", limits=replace(LIMITS, cpu_s=0.6))
    status = wait_end(handle)
    assert status.limit == "cpu"
    assert 0.6 <= status.cpu_s < 5


def test_a_harness_that_ignores_the_end_of_its_time_is_killed(
    launch_shell: LaunchShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "HARNESS_GRACE_S", 0.2)
    handle = launch_shell("trap '' TERM; while :; do sleep 0.1; done", timeout_s=0.3)
    status = wait_end(handle)
    assert (status.timed_out, status.limit, status.exit_code) == (True, "time", -9)


def test_output_is_kept_up_to_a_bound_and_the_harness_goes_on(
    launch_shell: LaunchShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "OUTPUT_BYTES", 1000)
    handle = launch_shell("head -c 5000000 /dev/zero | tr '\\0' x; exit 4")
    assert wait_end(handle).exit_code == 4
    said = handle.read_output(0)
    assert said[:1000] == b"x" * 1000
    assert len(said) < 1100
