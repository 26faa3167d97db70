"""Where harnesses and verifiers run, apart from the host and from each other."""

import contextlib
from collections.abc import Iterator

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
    "nothing_prepared",
    "read_regular",
    "reap",
]


def reap(at_once: bool = False) -> list[str]:
    """See reaper.py."""
    from environments.sandboxes.reaper import reap as reap_all

    return reap_all(at_once)


@contextlib.contextmanager
def nothing_prepared() -> Iterator[None]:
    """Launches within leave no warm sandbox behind: for a command that ends, and nobody after it wants one."""
    from environments.sandboxes.pool import POOL

    with POOL.closed():
        yield


def get_sandboxes(kind: str) -> Sandboxes:
    """The implementation of one kind. A kind that does not isolate is refused by name."""
    if kind == Sandbox.Kind.PROCESS:
        return ProcessSandboxes()
    if kind == Sandbox.Kind.DOCKER:
        from environments.sandboxes.docker import DockerSandboxes  # the engine's client takes a moment to import

        return DockerSandboxes()
    raise SandboxError(
        f'sandbox: there is no kind "{kind}"; harnesses run in "{Sandbox.Kind.PROCESS.value}" (bubblewrap) or '
        f'"{Sandbox.Kind.DOCKER.value}" sandboxes, and never without one.',
        retry=False,
    )
