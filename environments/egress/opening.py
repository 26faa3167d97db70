"""The proxy of one rollout: where its socket lies, and who may use it.

From:  environments.life, before a sandbox is launched and when another worker takes a rollout over; a solution check.
To:    proxy.py with the task's rules; RUNTIME_DIR/egress/<rollout>/proxy.sock.
Holds: the directory stays while the sandbox may live: it is what is bound in, the socket in it is made anew.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings

from environments.egress.proxy import Asked, Proxy, Record
from environments.egress.record import Recorder
from environments.egress.rules import allowed_rules, private_networks
from environments.models import Rollout, Sandbox, Task


def socket_path(rollout: UUID) -> Path:
    """Below a directory that only we may enter; a sandbox sees the innermost alone."""
    return Path(settings.RUNTIME_DIR) / "egress" / rollout.hex / "proxy.sock"


def open_for(rollout: Rollout) -> Proxy | None:
    """None where its task names no hosts."""
    return _open(rollout.task, rollout.pk, Recorder(rollout.pk))


def _open(task: Task, owner: UUID, record: Record) -> Proxy | None:
    environment: dict[str, Any] = task.settings.get("environment") or {}
    rules = allowed_rules(environment)
    if not rules:
        return None
    path = socket_path(owner)
    path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Proxy(path, rules=rules, opened=private_networks(), record=record)


@contextlib.contextmanager
def opened_for_check(task: Task, kind: str) -> Iterator[tuple[Path | None, list[str]]]:
    """The socket for one run of the task's solution, None where it has no network; and what it was denied so far."""
    denied: list[str] = []

    def record(asked: Asked, over: bool) -> None:
        if over and asked.verdict == "denied":
            denied.append(f"{asked.method} {asked.host}:{asked.port} was denied ({asked.reason})")

    owner = uuid4()
    proxy = _open(task, owner, record) if kind == Sandbox.Kind.DOCKER else None
    try:
        yield (proxy.path if proxy else None), denied
    finally:
        if proxy:
            proxy.close()
            remove_for(owner)


def remove_for(rollout: UUID) -> None:
    """When its sandbox is gone."""
    path = socket_path(rollout)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
