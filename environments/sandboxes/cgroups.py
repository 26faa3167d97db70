"""Memory and process limits of a whole sandbox by control groups, where this process may make them.

From:  process.py.
To:    directories of /sys/fs/cgroup (version 1: memory and pids; version 2: one group with both).
Holds: best effort. Where nothing is writable the result is empty and the supervisor's own watching is what is left.
Never: touches a group that is not named gyre-<sandbox id>.
"""

import contextlib
import os
import time
from pathlib import Path
from uuid import UUID

from environments.sandboxes.protocol import Limits

ROOT = Path("/sys/fs/cgroup")
SPARE_PROCESSES = 8
SPARE_MEMORY_BYTES = 64 * 1024 * 1024
"""Our own supervisor, relay and watcher live in the group too."""


def parents() -> dict[str, Path]:
    """Writable groups in which ours can be made: {"unified": ...} or {"memory": ..., "pids": ...}."""
    if (ROOT / "cgroup.controllers").exists():
        group = ROOT / "gyre"
        with contextlib.suppress(OSError):
            (ROOT / "cgroup.subtree_control").write_text("+memory +pids")
            group.mkdir(exist_ok=True)
            (group / "cgroup.subtree_control").write_text("+memory +pids")
            return {"unified": group}
        return {}
    found: dict[str, Path] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "pids"} & set(controllers.split(",")):
            group = ROOT / controllers / path.lstrip("/")
            group = next((at for at in (group, *group.parents) if not at.name.startswith("gyre-")), group)
            if group.is_dir() and os.access(group, os.W_OK):
                found[controller] = group
    return found


def create_groups(sandbox: UUID, limits: Limits) -> list[Path]:
    """Groups with the limits set; a process enters by its id written to their cgroup.procs."""
    made: list[Path] = []
    for kind, parent in parents().items():
        group = parent / f"gyre-{sandbox}"
        try:
            group.mkdir(exist_ok=True)
            for name, value in settings_of(kind, limits):
                write_optional(group / name, value)
        except OSError:
            continue
        made.append(group)
    return made


def settings_of(kind: str, limits: Limits) -> list[tuple[str, str]]:
    memory = str(limits.memory_bytes + SPARE_MEMORY_BYTES)
    processes = str(limits.num_processes + SPARE_PROCESSES)
    if kind == "memory":
        return [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
    if kind == "pids":
        return [("pids.max", processes)]
    return [("memory.max", memory), ("memory.swap.max", "0"), ("pids.max", processes)]


def write_optional(path: Path, value: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(value)


def remove_groups(sandbox: UUID) -> None:
    """A group can be removed when its last process is gone, which the kernel may notice a little later."""
    for parent in parents().values():
        group = parent / f"gyre-{sandbox}"
        for _ in range(20):
            if not group.exists():
                break
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.01)
