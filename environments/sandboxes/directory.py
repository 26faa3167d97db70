"""The host's directory of one sandbox, and all that can be done with it whatever kind the sandbox is.

From:  process.py and docker.py, with a Launch or with a row.
To:    DATA_DIR/sandboxes/<id>/: work home tmp logs run (writable inside), etc, output, state.
Holds: (process id, start time) of process 1 and the state file tell how it is, without asking anybody.
Never: follows a link that an agent made; knows how a sandbox is made.
"""

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import bubblewrap
from environments.sandboxes.bubblewrap import WRITABLE
from environments.sandboxes.host import find_processes, is_running
from environments.sandboxes.protocol import LEASE_S, Launch, Limits, Mount, SandboxError, Status
from environments.sandboxes.trees import copy_tree, read_regular

OUTPUT_BYTES = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
HARNESS_GRACE_S = 5.0
LAST_WORDS_S = 1.0
"""After the second SIGTERM, for the supervisor to kill all, read what is in the pipe and write the state."""
KILL_TIMEOUT_S = 20.0
STATE_BYTES = 512
ENVIRONMENT = {
    "HOME": "/home/agent",
    "USER": "agent",
    "LOGNAME": "agent",
    "PATH": "/gyre/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def root_directory() -> Path:
    return Path(settings.DATA_DIR) / "sandboxes"


def directory_of(sandbox: UUID) -> Path:
    return root_directory() / str(sandbox)


def host_name() -> str:
    return socket.gethostname()


def installation() -> str:
    """Which Gyre of this host a process or container belongs to."""
    return sha256(str(root_directory().resolve()).encode()).hexdigest()[:16]


def marker_of(sandbox: UUID | str) -> str:
    """The word on process 1's command line that says: of this installation, this sandbox."""
    return f"gyre-sandbox:{installation()}:{sandbox}"


def create_row(kind: str, launch: Launch) -> Sandbox:
    """With a lease, before anything else of it exists."""
    sandbox = uuid4()
    return Sandbox.objects.create(
        id=sandbox,
        session_id=launch.session_id,
        rollout_id=launch.rollout_id,
        kind=kind,
        purpose=launch.purpose,
        image=launch.image or "",
        host=host_name(),
        directory=str(directory_of(sandbox)),
        lease_expires_at=timezone.now() + timedelta(seconds=LEASE_S),
    )


class DirectoryHandle:
    """What both kinds can do. A kind adds stop, remove and keep_image."""

    def __init__(self, row: Sandbox) -> None:
        self.row = row
        self.directory = Path(row.directory)
        self.work_tree = self.directory / "work"
        self.logs = self.directory / "logs"

    def status(self) -> Status:
        alive = self.is_alive()  # before the state is read: process 1 writes its last word, then ends
        state = read_state(self.directory)
        has_ended = not state.get("running", True)
        limit = state.get("limit", "")
        return Status(
            running=alive and not has_ended,
            exit_code=state.get("exit_code"),
            timed_out=limit == "time",
            cpu_s=float(state.get("cpu_s", 0.0)),
            limit=limit if alive or has_ended else limit or "lost",
        )

    def read_output(self, offset: int) -> bytes:
        try:
            return read_regular(self.directory / "output", offset=offset, limit=READ_BYTES)
        except FileNotFoundError:
            return b""

    def renew(self) -> None:
        self.row.lease_expires_at = timezone.now() + timedelta(seconds=LEASE_S)
        self.row.save(update_fields=["lease_expires_at"])

    def snapshot(self, destination: Path) -> None:
        copy_tree(self.work_tree, destination)

    def process_ids(self) -> list[tuple[int, int]]:
        """Process 1 of the sandbox: as the row says, or found by its marker where the launcher died before saving."""
        if self.row.handle.get("pid"):
            return [(int(self.row.handle["pid"]), int(self.row.handle["start_time"]))]
        return find_processes(marker_of(self.row.id))

    def is_alive(self) -> bool:
        return any(map(is_running, self.process_ids()))

    def mark_stopped(self) -> None:
        if self.row.stopped_at is None:
            self.row.stopped_at = timezone.now()
            Sandbox.objects.filter(pk=self.row.pk, stopped_at=None).update(stopped_at=self.row.stopped_at)


def check_mounts(mounts: Sequence[Mount]) -> None:
    for mount in mounts:
        target = mount.target
        if os.path.normpath(target) != target or not target.startswith("/") or target == "/":
            raise SandboxError(f"sandbox: {target} is no absolute, plain path to mount at.", retry=False)
        if bubblewrap.is_under(target, bubblewrap.FORBIDDEN_TARGETS):
            raise SandboxError(f"sandbox: nothing can be mounted at {target}; use /tests or /gyre/...", retry=False)
        if not mount.source.exists():
            raise SandboxError(f"sandbox: {mount.source}, to be mounted at {target}, does not exist.", retry=False)


def prepare_directory(directory: Path, uid: int | None) -> None:
    """Everything that is the same for every launch. uid: whose it is; None: ours."""
    root_directory().mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    (directory / "marker").write_text(marker_of(directory.name))
    for name in WRITABLE:
        if name != "work":
            make_writable(directory / name, uid)
    (directory / "etc").mkdir()


def write_etc(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / "etc" / name).write_text(text)
        (directory / "etc" / name).chmod(0o644)


def fill_tree(target: Path, source: Path | None, uid: int | None) -> None:
    """Copy a tree into an empty directory that is mounted already."""
    if source is not None:
        copy_tree(source, target, owner=uid, keep_outer_links=True, into=True)
    make_writable(target, uid)


def make_writable(path: Path, uid: int | None) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    if uid is not None:
        os.chown(path, uid, uid)


def readable_source(directory: Path, mount: Mount, uid: int | None) -> Path:
    """The mount's source itself, or a copy that belongs to the harness's user where others may not read it."""
    source = mount.source.resolve()
    needed = 0o005 if source.is_dir() else 0o004
    if uid is None or source.stat().st_mode & needed == needed:
        return source
    copies = directory / "mounts"
    copies.mkdir(exist_ok=True)
    copy = copies / str(len(list(copies.iterdir())))
    if source.is_dir():
        copy_tree(source, copy, owner=uid, keep_outer_links=True)
    else:
        shutil.copyfile(source, copy)
        os.chmod(copy, source.stat().st_mode & 0o777)
        os.chown(copy, uid, uid)
    return copy


def build_order(launch: Launch) -> dict[str, Any]:
    """What supervisor.py is told; each kind adds who it is to be and where."""
    limits: Limits = launch.limits
    return {
        "command": list(launch.command),
        "environment": {**ENVIRONMENT, **launch.environment, "HOME": "/home/agent"},
        "relay": launch.gateway,
        "timeout_s": launch.timeout_s,
        "grace_s": HARNESS_GRACE_S,
        "output_bytes": OUTPUT_BYTES,
        "writable": list(WRITABLE.values()),
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
        "num_processes": limits.num_processes,
        "file_bytes": limits.file_bytes,
        "disk_bytes": limits.disk_bytes,
    }


def gateway_directory(uid: int | None) -> Path:
    gateway = Path(settings.GATEWAY_SOCKET_DIR)
    gateway.mkdir(parents=True, exist_ok=True)
    if uid is not None and not gateway.stat().st_mode & 0o001:
        raise SandboxError(f"sandbox: users of sandboxes cannot enter {gateway}; chmod 755 it.", retry=False)
    return gateway


def read_state(directory: Path) -> Mapping[str, Any]:
    """Process 1's last words; {} where it has not spoken. It writes them in one piece; a torn read is read again."""
    for _ in range(5):
        try:
            data = read_regular(directory / "state", limit=STATE_BYTES)
        except OSError:
            return {}
        if not data:
            return {}
        with contextlib.suppress(ValueError):
            return check_state(json.loads(data))
        time.sleep(0.001)
    return {}


def check_state(state: object) -> Mapping[str, Any]:
    """In a user namespace a harness can, with effort, write where its supervisor writes: types are not taken on trust."""
    kinds = {"running": bool, "exit_code": int | None, "timed_out": bool, "limit": str, "cpu_s": int | float}
    if not isinstance(state, dict) or not all(isinstance(state.get(name), kind) for name, kind in kinds.items()):
        raise ValueError("not a supervisor's state")
    return state
