"""Start, watch and end operating-system processes without leaving any behind.

From:  gyre_web.up.supervisor and gyre_web.up.services.
Holds: a process started here dies with its starter, even when that is killed with -9 (Linux parent-death signal,
       which is tied to the starting *thread*: start from a thread that lives as long as the process shall).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with_parent(death_signal: int = signal.SIGTERM) -> Callable[[], None]:
    """A `preexec_fn` that asks the kernel for `death_signal` when the starting thread ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        libc.prctl(PR_SET_PDEATHSIG, death_signal)

    return arrange


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which `pid` started: with the pid it names one process for good. None: no such one."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] != "Z":
            return int(fields[19])
    return None


def is_same_process(pid: int, started: int) -> bool:
    return start_time(pid) == started


def end_group(pid: int, patience_s: float) -> None:
    """SIGTERM to the leader, then SIGKILL to what is left of its process group once patience ends."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def stop_process(process: subprocess.Popen[bytes] | None, first_signal: int, patience_s: float = 15.0) -> None:
    """Ask, wait, then kill; returns when the process is gone."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(first_signal)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
