"""What every kind of sandbox can do: start a program apart from the host, find it again, end it, keep its work.

From:  environments.rollouts and environments.verification, which know only this module.
To:    one implementation a kind (process.py, docker.py), chosen by `environments.sandboxes.get_sandboxes`.
Holds: a handle made by `attach` in another process can do all that the launcher's handle can.
Never: knows a harness, a task or a reward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol
from uuid import UUID

from environments.models import Sandbox

RELAY_URL = "http://127.0.0.1:8100"
"""Where the relay listens inside every sandbox; a harness's base URL is this + `/s/<session key>`."""

EGRESS_URL = "http://127.0.0.1:8101"
"""Where a sandbox with egress finds its filtering proxy; its http_proxy and https_proxy say so."""

LEASE_S = 300.0
"""A sandbox that nobody renewed for this long is an orphan. Longer than a rollout's lease: its next owner re-attaches."""


class SandboxError(Exception):
    """Boundary: sandbox. It could not be made, or not be ended; the text says what to do. `retry`: it may help."""

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry


@dataclass(frozen=True, kw_only=True)
class Mount:
    source: Path
    target: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    cpu_s: float | None
    memory_bytes: int
    num_processes: int
    file_bytes: int
    disk_bytes: int
    cpus: float | None = None
    """Processors it may keep busy, e.g. 0.5; None: all. Held by docker sandboxes only."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One program to start. `command` is found through PATH of `environment`; its HOME is /home/agent.

    work_tree: host directory copied to where the program works (/work, or the image's WORKDIR); the original is only
               read, links in it stay links. None: what the image holds there, else nothing.
    read_only: further host files or directories, e.g. a harness bundle at /gyre/harness, tests at /tests.
    gateway:   with the relay on 127.0.0.1:8100; without it there is no way out at all.
    image:     id of an image that is on this host already (docker only; environments.images finds or builds it).
    egress:    .../proxy.sock, the socket of a filtering proxy that serves this sandbox alone, in a directory with nothing
               else in it (docker only). The sandbox reaches it at EGRESS_URL. Whoever made the proxy ends it, and makes
               it again at the same path after a worker's death. None: no way out but the gateway.
    """

    rollout_id: UUID | None
    session_id: UUID | None
    purpose: Literal["agent", "verifier"]
    command: Sequence[str]
    environment: Mapping[str, str]
    work_tree: Path | None
    read_only: Sequence[Mount]
    gateway: bool
    timeout_s: float
    limits: Limits
    image: str | None = None
    egress: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Status:
    """exit_code: negative is the signal that ended it; None while running, or where the sandbox was lost.
    limit: what ended it besides itself: "", time, cpu, disk, memory, processes, stopped, lost.
    """

    running: bool
    exit_code: int | None
    timed_out: bool
    cpu_s: float
    limit: str = ""


class Handle(Protocol):
    row: Sandbox
    work_tree: Path
    logs: Path

    def status(self) -> Status: ...

    def read_output(self, offset: int) -> bytes:
        """Combined stdout and stderr from a byte offset, at most 1 MiB a call; b"" when there is no more yet."""
        ...

    def renew(self) -> None: ...

    def stop(self, grace_s: float = 2.0) -> None:
        """End everything in it: asked first, killed after the grace. Returns when all is gone, else SandboxError."""
        ...

    def snapshot(self, destination: Path) -> None:
        """Copy the work tree to a path that does not exist yet; links that leave it and special files stay out."""
        ...

    def keep_image(self) -> str | None:
        """An image of what a stopped sandbox's file system became, beside the work tree; it goes when the sandbox goes.

        None: this kind has no images.
        """
        ...

    def remove(self) -> None: ...


class Sandboxes(Protocol):
    kind: str

    def check(self) -> str | None:
        """Why it cannot work on this machine and what to do, in one sentence; None where it can."""
        ...

    def launch(self, launch: Launch) -> Handle: ...

    def start_tree(self, image: str | None) -> Path | None:
        """What an image holds where the program works; only to be read. None: nothing."""
        ...

    def attach(self, row: Sandbox) -> Handle | None:
        """Find it again, running or ended; None: it is gone, or on another host."""
        ...
