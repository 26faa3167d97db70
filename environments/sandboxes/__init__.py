"""Where harnesses and verifiers run, apart from the host and from each other."""

from environments.models import Sandbox
from environments.sandboxes.process import PYTHON, ProcessSandboxes
from environments.sandboxes.protocol import (
    EGRESS_URL,
    LEASE_S,
    RELAY_URL,
    Handle,
    Launch,
    Limits,
    Mount,
    SandboxError,
    Sandboxes,
    Status,
)
from environments.sandboxes.reaper import reap
from environments.sandboxes.trees import copy_tree, read_regular

__all__ = [
    "EGRESS_URL",
    "LEASE_S",
    "PYTHON",
    "RELAY_URL",
    "Handle",
    "Launch",
    "Limits",
    "Mount",
    "SandboxError",
    "Sandboxes",
    "Status",
    "copy_tree",
    "get_sandboxes",
    "read_regular",
    "reap",
]


def get_sandboxes(kind: str) -> Sandboxes:
    """The implementation of one kind. A kind that does not isolate is refused by name."""
    if kind == Sandbox.Kind.PROCESS:
        return ProcessSandboxes()
    raise SandboxError(
        f'sandbox: kind "{kind}" is not available; this version runs harnesses in "{Sandbox.Kind.PROCESS.value}" '
        "sandboxes (bubblewrap) and never without one.",
        retry=False,
    )
