"""How far past its disk limit a program gets before it is ended: the limit is watched, not enforced by the kernel.

From:  bench sandboxes.
To:    bytes that were written when it was ended, over the limit; with one writer and with one a processor.
Holds: the writers do nothing else, in pieces of a megabyte, so this is as bad as this machine's disk and memory allow;
       one that nobody ends gives up at GIVE_UP times the limit and is reported so.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.sandboxes import Handle, Launch, get_sandboxes
from environments.sandboxes.layers import used_bytes

GIVE_UP = 64
WRITE = """
import os, sys
directory, writers, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
piece = bytes(1 << 20)
os.chdir(directory)
print("up", flush=True)
for number in range(writers):
    if not os.fork():
        for name in range(most // (writers * (16 << 20))):
            with open(f"f{number}-{name}", "wb") as file:
                for _ in range(16):
                    file.write(piece)
        os._exit(0)
for _ in range(writers):
    os.wait()
"""


def measure_disk(kind: str, build: Callable[..., Launch], where: str, limit_bytes: int) -> list[dict[str, Any]]:
    """One row for each number of writers."""
    return [measure_one(kind, build, where, limit_bytes, writers) for writers in sorted({1, os.cpu_count() or 1})]


def measure_one(kind: str, build: Callable[..., Launch], where: str, limit_bytes: int, writers: int) -> dict[str, Any]:
    from environments.sandboxes import PYTHON

    words = [PYTHON, "-I", "-S", "-c", WRITE, where, str(writers), str(GIVE_UP * limit_bytes)]
    handle = get_sandboxes(kind).launch(build(words))
    began = time.monotonic()
    status = handle.status()
    while status.running and time.monotonic() < began + 60:
        time.sleep(0.05)
        status = handle.status()
    ended_s = time.monotonic() - began
    handle.stop()
    written = written_bytes(handle, where)
    handle.remove()
    return {
        "where": where,
        "writers": writers,
        "ended_by": status.limit,
        "ended_s": round(ended_s, 2),
        "limit_mb": round(limit_bytes / 1e6, 1),
        "written_mb": round(written / 1e6, 1),
        "times_limit": round(written / limit_bytes, 2),
    }


def written_bytes(handle: Handle, where: str) -> int:
    """Of the work tree, or of the container's own layer."""
    tree = handle.work_tree if where == "/work" else Path(str(handle.row.handle.get("layer") or handle.work_tree))
    return used_bytes(str(tree), 1 << 50)
