"""The proxy of one rollout: where its socket lies, and who may use it.

From:  environments.life, before a sandbox is launched and when another worker takes a rollout over.
To:    proxy.py with the task's rules; RUNTIME_DIR/egress/<rollout>/proxy.sock.
Holds: the directory stays while the sandbox may live: it is what is bound in, the socket in it is made anew.
"""

import contextlib
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from environments.egress.proxy import Proxy
from environments.egress.record import Recorder
from environments.egress.rules import allowed_rules, private_networks
from environments.models import Rollout


def socket_path(rollout: UUID) -> Path:
    """Below a directory that only we may enter; a sandbox sees the innermost alone."""
    return Path(settings.RUNTIME_DIR) / "egress" / rollout.hex / "proxy.sock"


def open_for(rollout: Rollout) -> Proxy | None:
    """None where its task names no hosts."""
    environment: dict[str, Any] = rollout.task.settings.get("environment") or {}
    rules = allowed_rules(environment)
    if not rules:
        return None
    path = socket_path(rollout.pk)
    path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Proxy(path, rules=rules, opened=private_networks(), record=Recorder(rollout.pk))


def remove_for(rollout: UUID) -> None:
    """When its sandbox is gone."""
    path = socket_path(rollout)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
