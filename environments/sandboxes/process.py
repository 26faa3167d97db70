"""Process sandboxes: bubblewrap, a supervisor inside, everything of one sandbox in one directory of the host.

From:  a Launch (protocol.py).
To:    DATA_DIR/sandboxes/<id>/: work home tmp logs run (writable inside), etc, order.json, output, state, launch.log.
       Output and state are open files of process 1 and not visible inside.
Holds: a sandbox survives its launcher; (process id, start time, state file) is all that `attach` needs. Killing process
       1 ends every process in it: the kernel does that for a process namespace.
Never: follows a link that an agent made; lets a sandbox run without a row and a lease.
"""

import contextlib
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import bubblewrap, cgroups, syscalls
from environments.sandboxes.bubblewrap import PYTHON, WRITABLE, Identity
from environments.sandboxes.host import find_processes, is_running, send_signal, start_time_of, wait_gone
from environments.sandboxes.protocol import LEASE_S, Launch, Limits, Mount, SandboxError, Status
from environments.sandboxes.trees import copy_tree, read_regular, remove_tree

__all__ = ["PYTHON", "ProcessHandle", "ProcessSandboxes"]

OUTPUT_BYTES = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
HARNESS_GRACE_S = 5.0
START_TIMEOUT_S = 30.0
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

_children: dict[int, subprocess.Popen[bytes]] = {}
_children_lock = threading.Lock()


def root_directory() -> Path:
    return Path(settings.DATA_DIR) / "sandboxes"


def directory_of(sandbox: UUID) -> Path:
    return root_directory() / str(sandbox)


def host_name() -> str:
    return socket.gethostname()


def marker_of(sandbox: UUID | str) -> str:
    """The word on process 1's command line that says: of this installation, this sandbox."""
    installation = sha256(str(root_directory().resolve()).encode()).hexdigest()[:16]
    return f"gyre-sandbox:{installation}:{sandbox}"


class ProcessSandboxes:
    kind = Sandbox.Kind.PROCESS.value

    def check(self) -> str | None:
        return bubblewrap.check_python() or check_bubblewrap()

    def launch(self, launch: Launch) -> "ProcessHandle":
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError(str(self.check()), retry=False)
        refuse_containers(launch)
        check_mounts(launch.read_only)
        sandbox = uuid4()
        row = Sandbox.objects.create(
            id=sandbox,
            session_id=launch.session_id,
            rollout_id=launch.rollout_id,
            kind=self.kind,
            purpose=launch.purpose,
            host=host_name(),
            directory=str(directory_of(sandbox)),
            lease_expires_at=timezone.now() + timedelta(seconds=LEASE_S),
        )
        handle = ProcessHandle(row)
        try:
            row.handle = choose_and_start(bwrap, sandbox, launch)
            row.save(update_fields=["handle"])
        except (OSError, SandboxError) as error:
            handle.remove()
            raise (
                error if isinstance(error, SandboxError) else SandboxError(f"sandbox: cannot set up: {error}")
            ) from error
        return handle

    def attach(self, row: Sandbox) -> "ProcessHandle | None":
        if row.host != host_name() or not row.handle or not Path(row.directory).is_dir():
            return None
        return ProcessHandle(row)


class ProcessHandle:
    def __init__(self, row: Sandbox) -> None:
        self.row = row
        self.directory = Path(row.directory)
        self.work_tree = self.directory / "work"
        self.logs = self.directory / "logs"

    def status(self) -> Status:
        alive = self._is_alive()  # before the state is read: process 1 writes its last word, then ends
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

    def stop(self, grace_s: float = 2.0) -> None:
        processes = self._process_ids()
        asking = [grace_s, LAST_WORDS_S] if grace_s > 0 else []
        for number, patience_s in [*((signal.SIGTERM, s) for s in asking), (signal.SIGKILL, KILL_TIMEOUT_S)]:
            for process in filter(is_running, processes):
                send_signal(process[0], number)
            if wait_gone(processes, patience_s):
                break
        else:
            raise SandboxError(f"sandbox: process {processes[0][0]} of {self.row.id} does not end, although killed.")
        cgroups.remove_groups(self.row.id)
        if self.row.stopped_at is None:
            self.row.stopped_at = timezone.now()
            Sandbox.objects.filter(pk=self.row.pk, stopped_at=None).update(stopped_at=self.row.stopped_at)

    def snapshot(self, destination: Path) -> None:
        copy_tree(self.work_tree, destination)

    def remove(self) -> None:
        self.stop(grace_s=0.0)
        remove_tree(self.directory)

    def _process_ids(self) -> list[tuple[int, int]]:
        """Process 1 of the sandbox: as the row says, or found by its marker where the launcher died before saving."""
        if self.row.handle:
            return [(int(self.row.handle["pid"]), int(self.row.handle["start_time"]))]
        return find_processes(marker_of(self.row.id))

    def _is_alive(self) -> bool:
        return any(map(is_running, self._process_ids()))


def choose_and_start(bwrap: str, sandbox: UUID, launch: Launch) -> dict[str, int]:
    """Everything of a launch but its row; returns what the row's handle must be."""
    identity = bubblewrap.choose_identity(sandbox)
    mounts = prepare_directory(directory_of(sandbox), launch, identity)
    return start(bwrap, directory_of(sandbox), launch, identity, mounts)


def refuse_containers(launch: Launch) -> None:
    if launch.image or launch.egress:
        wish = f"the image {launch.image}" if launch.image else "a network"
        raise SandboxError(f"sandbox: process sandboxes cannot have {wish}; use docker sandboxes.", retry=False)


def check_mounts(mounts: Sequence[Mount]) -> None:
    for mount in mounts:
        target = mount.target
        if os.path.normpath(target) != target or not target.startswith("/") or target == "/":
            raise SandboxError(f"sandbox: {target} is no absolute, plain path to mount at.", retry=False)
        if bubblewrap.is_under(target, bubblewrap.FORBIDDEN_TARGETS):
            raise SandboxError(f"sandbox: nothing can be mounted at {target}; use /tests or /gyre/...", retry=False)
        if not mount.source.exists():
            raise SandboxError(f"sandbox: {mount.source}, to be mounted at {target}, does not exist.", retry=False)


def prepare_directory(directory: Path, launch: Launch, identity: Identity) -> list[tuple[Path, str]]:
    """Make the sandbox's directory; returns its read-only mounts. What the harness's user cannot read is copied."""
    root_directory().mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    (directory / "marker").write_text(marker_of(directory.name))
    copy_tree(launch.work_tree, directory / "work", owner=identity.uid, keep_outer_links=True)
    (directory / "work").chmod(0o755)
    for name in WRITABLE:
        path = directory / name
        path.mkdir(exist_ok=True, mode=0o755)
        if identity.uid is not None:
            os.chown(path, identity.uid, identity.uid)
    (directory / "etc").mkdir()
    for name, text in bubblewrap.etc_files(identity).items():
        (directory / "etc" / name).write_text(text)
        (directory / "etc" / name).chmod(0o644)
    return [(readable_source(directory, mount, identity), mount.target) for mount in launch.read_only]


def readable_source(directory: Path, mount: Mount, identity: Identity) -> Path:
    """The mount's source itself, or a copy that belongs to the harness's user where others may not read it."""
    source = mount.source.resolve()
    needed = 0o005 if source.is_dir() else 0o004
    if identity.uid is None or source.stat().st_mode & needed == needed:
        return source
    copies = directory / "mounts"
    copies.mkdir(exist_ok=True)
    copy = copies / str(len(list(copies.iterdir())))
    if source.is_dir():
        copy_tree(source, copy, owner=identity.uid, keep_outer_links=True)
    else:
        shutil.copyfile(source, copy)
        os.chmod(copy, source.stat().st_mode & 0o777)
        os.chown(copy, identity.uid, identity.uid)
    return copy


def build_order(launch: Launch, identity: Identity) -> dict[str, Any]:
    """What supervisor.py is told."""
    limits: Limits = launch.limits
    return {
        "command": list(launch.command),
        "environment": {**ENVIRONMENT, **launch.environment, "HOME": "/home/agent"},
        "uid": identity.uid,
        "relay": launch.gateway,
        "relay_uid": None if identity.uid is None else bubblewrap.RELAY_UID,
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


def start(
    bwrap: str, directory: Path, launch: Launch, identity: Identity, mounts: Sequence[tuple[Path, str]]
) -> dict[str, int]:
    """Start it detached and wait until the harness runs. Returns the row's handle: process 1 and its start time."""
    gateway = Path(settings.GATEWAY_SOCKET_DIR) if launch.gateway else None
    if gateway is not None:
        gateway.mkdir(parents=True, exist_ok=True)
        if identity.uid is not None and not gateway.stat().st_mode & 0o001:
            raise SandboxError(f"sandbox: users of sandboxes cannot enter {gateway}; chmod 755 it.", retry=False)
    sandbox = UUID(directory.name)
    groups = cgroups.create_groups(sandbox, launch.limits)
    with contextlib.ExitStack() as stack:
        info_read, info = open_pipe(stack)
        ready_read, ready = open_pipe(stack)
        create = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        order, output, state, log = (
            stack.enter_context(os.fdopen(os.open(directory / name, create, 0o600), "r+b", buffering=0))
            for name in ("order.json", "output", "state", "launch.log")
        )
        order.write(json.dumps(build_order(launch, identity)).encode())
        order.seek(0)
        filter_fd = open_filter(stack)
        program = [marker_of(sandbox), str(state.fileno()), str(ready.fileno())]
        command = bubblewrap.build_command(
            bwrap=bwrap,
            identity=identity,
            directory=directory,
            mounts=mounts,
            gateway=gateway,
            info_fd=info.fileno(),
            filter_fd=filter_fd,
            program=program,
        )
        child = subprocess.Popen(
            [*enter_groups(groups), *command],
            stdin=order,
            stdout=output,
            stderr=log,
            env={"PATH": os.defpath},
            cwd="/",
            start_new_session=True,
            pass_fds=[fd for fd in (state.fileno(), info.fileno(), ready.fileno(), filter_fd) if fd is not None],
        )
        remember_child(child)
        info.close()
        ready.close()
        pid, start_time = read_info(info_read)
        if pid is None or not wait_ready(ready_read):
            child.kill()
            if pid is not None:
                send_signal(pid, signal.SIGKILL)
            log.seek(0)
            said = log.read().decode(errors="replace").strip()[-500:]
            raise SandboxError(f"sandbox: bubblewrap could not start it: {said or 'it ended without a word'}")
        return {"pid": pid, "start_time": start_time}


def open_pipe(stack: contextlib.ExitStack) -> tuple[int, io.FileIO]:
    """A pipe; the stack closes both ends, the writing one must be closed earlier for the reader to see the end."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    return reading, stack.enter_context(io.FileIO(writing, "w"))


def open_filter(stack: contextlib.ExitStack) -> int | None:
    program = syscalls.build_filter()
    if program is None:
        return None
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def enter_groups(groups: Sequence[Path]) -> list[str]:
    """A shell that joins the control groups before it becomes bwrap; no code of ours runs between fork and exec."""
    if not groups:
        return []
    script = " ".join(f'echo $$ > "{group}/cgroup.procs" 2>/dev/null || true;' for group in groups)
    return ["/bin/sh", "-c", f'{script} exec "$@"', "sh"]


def read_info(fd: int) -> tuple[int | None, int]:
    """Process 1 as the host numbers it, from bwrap's --info-fd; None where bwrap gave up before."""
    data = b""
    while piece := os.read(fd, 4096):
        data += piece
    if not data:
        return None, 0
    pid = int(json.loads(data)["child-pid"])
    return pid, start_time_of(pid) or 0


def wait_ready(fd: int) -> bool:
    """Process 1 writes one byte when the harness runs; the end without it means that it gave up."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(START_TIMEOUT_S * 1000)) and os.read(fd, 1) == b"1"


def remember_child(child: subprocess.Popen[bytes]) -> None:
    """Keep what we started until it has ended, and collect those that have."""
    with _children_lock:
        _children[child.pid] = child
        for pid in [pid for pid, known in _children.items() if known.poll() is not None]:
            del _children[pid]


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


@cache
def check_bubblewrap() -> str | None:
    """Try it once in this process: make the namespaces and run `true`."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "sandbox: bubblewrap is not installed; install the package bubblewrap (apt, dnf, pacman or apk)."
    identity = bubblewrap.choose_identity(uuid4())
    words = [bwrap, *bubblewrap.namespaces(identity), *bubblewrap.system_mounts(), "/usr/bin/true"]
    tried = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode(errors="replace").strip()
    return (
        f"sandbox: bubblewrap cannot isolate here ({said}); allow unprivileged user namespaces (sysctl "
        "kernel.unprivileged_userns_clone=1, or an AppArmor profile for bwrap), or run the workers as root."
    )
