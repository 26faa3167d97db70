"""End and remove sandboxes that nobody leases any more, and what is left of sandboxes that have no row.

From:  the controller and `manage.py doctor`, on every host that has sandboxes, as often as they like.
To:    processes, containers, kept images, directories and control groups of this host; Sandbox.stopped_at.
Holds: idempotent. A renewed sandbox is left alone; so is everything that does not carry this installation's marker.
Never: touches another host's sandboxes or another installation's.
"""

import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import cgroups, engine_client
from environments.sandboxes.directory import KILL_TIMEOUT_S, directory_of, host_name, marker_of, root_directory
from environments.sandboxes.docker import DockerHandle
from environments.sandboxes.host import find_processes, send_signal, wait_gone
from environments.sandboxes.process import ProcessHandle
from environments.sandboxes.protocol import SandboxError
from environments.sandboxes.trees import read_regular, remove_tree

log = logging.getLogger(__name__)

ORPHAN_AGE_S = 60.0
"""A younger directory without a row may belong to a launch whose transaction is not committed yet."""


def reap(at_once: bool = False) -> list[str]:
    """Returns what it did, one sentence each. at_once: also what is young; only where nobody is launching."""
    min_age_s = 0.0 if at_once else ORPHAN_AGE_S
    return [*reap_expired(), *reap_orphans(min_age_s), *reap_containers(min_age_s)]


def reap_expired() -> list[str]:
    """Rows of this host whose lease ran out and that still have a process or a directory."""
    done: list[str] = []
    expired = Sandbox.objects.filter(host=host_name(), lease_expires_at__lt=timezone.now())
    for row in expired.filter(Q(stopped_at=None) | Q(directory__startswith=str(root_directory()))):
        directory = Path(row.directory)
        if directory != directory_of(row.id) or (row.stopped_at is not None and not directory.exists()):
            continue
        try:
            handle_of(row).remove()
        except (SandboxError, OSError) as error:
            log.error("cannot reap a sandbox", extra={"sandbox": str(row.id), "error": str(error)})
            continue
        if row.purpose == Sandbox.Purpose.WARM:
            row.delete()
        done.append(f"sandbox {row.id}: its lease ran out; ended and removed.")
    return done


def handle_of(row: Sandbox) -> ProcessHandle | DockerHandle:
    return DockerHandle(row) if row.kind == Sandbox.Kind.DOCKER else ProcessHandle(row)


def reap_orphans(min_age_s: float) -> list[str]:
    """Directories and processes of ours without a row: their rollout was deleted, or their database was."""
    root = root_directory()
    named = {name for name in (os.listdir(root) if root.is_dir() else []) if is_ours(root / name)}
    running = running_sandboxes()
    candidates = {UUID(name) for name in named | running if is_old(root / name, min_age_s)}
    known = set(Sandbox.objects.filter(pk__in=candidates).values_list("pk", flat=True))
    done = []
    for sandbox in sorted(candidates - known):
        with contextlib.suppress(OSError, SandboxError):
            remove_orphan(sandbox)
            done.append(f"sandbox {sandbox}: it has no row; ended and removed.")
    return done


def reap_containers(min_age_s: float) -> list[str]:
    """Containers and kept images with our label that no row speaks of, or whose sandbox is gone."""
    if not engine_client.is_there():
        return []
    done = []
    try:
        for found in [*engine_client.own_containers(), *engine_client.own_images()]:
            sandbox = found["Labels"].get(engine_client.SANDBOX, "")
            if time.time() - found["Created"] < min_age_s or is_wanted(sandbox):
                continue
            kind = "container" if "Names" in found else "image"
            remove = engine_client.remove_container if kind == "container" else engine_client.remove_image
            remove(found["Id"])
            done.append(f"{kind} {found['Id'][:19]}: of sandbox {sandbox or 'none'}, which is gone; removed.")
    except SandboxError as error:
        log.warning("containers cannot be reaped", extra={"error": str(error)})
    return done


def is_wanted(sandbox: str) -> bool:
    return bool(sandbox) and directory_of(UUID(sandbox)).exists() and Sandbox.objects.filter(pk=sandbox).exists()


def is_ours(directory: Path) -> bool:
    try:
        UUID(directory.name)
        return read_regular(directory / "marker", limit=200).decode() == marker_of(directory.name)
    except (OSError, ValueError):
        return False


def is_old(directory: Path, min_age_s: float) -> bool:
    """Also true where there is no directory: a process that lost it has no use."""
    try:
        return time.time() - (directory / "marker").lstat().st_mtime >= min_age_s
    except FileNotFoundError:
        return True


def running_sandboxes() -> set[str]:
    """Sandboxes of which a process here carries this installation's marker."""
    prefix = marker_of("").encode()
    found: set[str] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            for word in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                if word.startswith(prefix):
                    found.add(str(UUID(word[len(prefix) :].decode())))
    return found


def remove_orphan(sandbox: UUID) -> None:
    processes = find_processes(marker_of(sandbox))
    for pid, _ in processes:
        send_signal(pid, signal.SIGKILL)
    wait_gone(processes, KILL_TIMEOUT_S)
    cgroups.remove_groups(sandbox)
    if engine_client.is_there():
        for found in engine_client.own_containers(str(sandbox)):
            engine_client.remove_container(found["Id"])
    if directory_of(sandbox).exists():
        remove_tree(directory_of(sandbox))
