"""Wait for what another process does, with a deadline instead of a guess."""

import time
from collections.abc import Callable
from pathlib import Path

from environments.sandboxes import Handle, Status


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def wait_end(handle: Handle, timeout_s: float = 20.0) -> Status:
    wait_for(lambda: not handle.status().running, timeout_s)
    return handle.status()


def wait_output(handle: Handle, word: bytes, timeout_s: float = 20.0) -> None:
    wait_for(lambda: word in handle.read_output(0), timeout_s)


def processes_with(word: str) -> list[int]:
    """Processes of the host whose command line has this text: a test marks its own with a random word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
