"""Processes of this host, by (process id, start time): an id alone may be somebody else's by now.

From:  process.py and reaper.py.
To:    signals and /proc.
Holds: what has ended, or is only a zombie, is not running.
Never: signals a process that it did not look up by start time or marker.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path


def start_time_of(pid: int) -> int | None:
    """When the kernel started it, in ticks since boot; None where there is no such process, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_running(process: tuple[int, int]) -> bool:
    pid, start_time = process
    return start_time_of(pid) == start_time


def send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_gone(processes: Sequence[tuple[int, int]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    pause_s = 0.002
    while any(map(is_running, processes)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(0.05, pause_s * 2)
    return True


def find_processes(marker: str) -> list[tuple[int, int]]:
    """Living processes whose command line has this word."""
    wanted = marker.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                start_time = start_time_of(int(name))
                if start_time is not None:
                    found.append((int(name), start_time))
    return found
