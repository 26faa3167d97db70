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
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

from environments.models import Sandbox
from environments.sandboxes import bubblewrap, cgroups, syscalls
from environments.sandboxes.bubblewrap import PYTHON, Identity
from environments.sandboxes.directory import (
    KILL_TIMEOUT_S,
    LAST_WORDS_S,
    DirectoryHandle,
    build_order,
    check_mounts,
    create_row,
    directory_of,
    fill_tree,
    gateway_directory,
    host_name,
    marker_of,
    prepare_directory,
    readable_source,
    write_etc,
)
from environments.sandboxes.host import is_running, send_signal, start_time_of, wait_gone
from environments.sandboxes.protocol import Launch, SandboxError
from environments.sandboxes.trees import remove_tree

__all__ = ["PYTHON", "ProcessHandle", "ProcessSandboxes"]

START_TIMEOUT_S = 30.0
_children: dict[int, subprocess.Popen[bytes]] = {}
_children_lock = threading.Lock()


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
        row = create_row(self.kind, launch)
        handle = ProcessHandle(row)
        try:
            row.handle = choose_and_start(bwrap, row.id, launch)
            row.save(update_fields=["handle"])
        except (OSError, SandboxError) as error:
            handle.remove()
            raise (
                error if isinstance(error, SandboxError) else SandboxError(f"sandbox: cannot set up: {error}")
            ) from error
        return handle

    def start_tree(self, image: str | None) -> None:
        """There is no image that could hold one."""

    def attach(self, row: Sandbox) -> "ProcessHandle | None":
        if row.host != host_name() or not row.handle or not Path(row.directory).is_dir():
            return None
        return ProcessHandle(row)


class ProcessHandle(DirectoryHandle):
    def stop(self, grace_s: float = 2.0) -> None:
        processes = self.process_ids()
        asking = [grace_s, LAST_WORDS_S] if grace_s > 0 else []
        for number, patience_s in [*((signal.SIGTERM, s) for s in asking), (signal.SIGKILL, KILL_TIMEOUT_S)]:
            for process in filter(is_running, processes):
                send_signal(process[0], number)
            if wait_gone(processes, patience_s):
                break
        else:
            raise SandboxError(f"sandbox: process {processes[0][0]} of {self.row.id} does not end, although killed.")
        cgroups.remove_groups(self.row.id)
        self.mark_stopped()

    def keep_image(self) -> None:
        """There is none: all that matters is in the work tree."""

    def remove(self) -> None:
        self.stop(grace_s=0.0)
        remove_tree(self.directory)


def choose_and_start(bwrap: str, sandbox: UUID, launch: Launch) -> dict[str, int]:
    """Everything of a launch but its row; returns what the row's handle must be."""
    identity = bubblewrap.choose_identity(sandbox)
    directory = directory_of(sandbox)
    prepare_directory(directory, identity.uid)
    (directory / "work").mkdir()
    fill_tree(directory / "work", launch.work_tree, identity.uid)
    write_etc(directory, bubblewrap.etc_files(identity))
    mounts = [(readable_source(directory, mount, identity.uid), mount.target) for mount in launch.read_only]
    return start(bwrap, directory, launch, identity, mounts)


def refuse_containers(launch: Launch) -> None:
    if launch.image or launch.egress:
        wish = f"the image {launch.image}" if launch.image else "a network"
        raise SandboxError(f"sandbox: process sandboxes cannot have {wish}; use docker sandboxes.", retry=False)


def start(
    bwrap: str, directory: Path, launch: Launch, identity: Identity, mounts: Sequence[tuple[Path, str]]
) -> dict[str, int]:
    """Start it detached and wait until the harness runs. Returns the row's handle: process 1 and its start time."""
    gateway = gateway_directory(identity.uid) if launch.gateway else None
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
        who = {"uid": identity.uid, "relay_uid": None if identity.uid is None else bubblewrap.RELAY_UID}
        order.write(json.dumps(build_order(launch) | who).encode())
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
