"""What is launched for a rollout: the harness's command, files and limits, as one Launch.

From:  environments.rollouts.
To:    environments.sandboxes.
Never: starts anything.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connection

from environments.config import Budgets
from environments.egress.rules import wants_network
from environments.harnesses import Assignment, HarnessMissing, HarnessProgram, check_settings, get_program
from environments.harnesses.base import HARNESS_DIRECTORY
from environments.harnesses.bundles import write_bundle
from environments.models import Harness, Rollout, Sandbox, Session, Task
from environments.sandboxes import Launch, Limits, Mount
from environments.tasksets.harbor import start_tree

MIB = 1 << 20
DEFAULT_MEMORY_MB = 2048
DEFAULT_STORAGE_MB = 2048
MAX_PROCESSES = 256


def find_image(task: Task, *, stop: threading.Event, keep_alive: Callable[[], None] = lambda: None) -> str:
    """Id of the task's image, which is on this host when this returns: built or pulled meanwhile.

    Raises ImageUnavailable, InterruptedError (stop was set), and what keep_alive raises.
    """
    from environments.images.ensure import ensure_image, want_image  # the engine's client takes a moment to import

    image = want_image(task)
    connection.close()
    return ensure_image(image, stop=stop, keep_alive=keep_alive)


def choose_kind(task: Task, wanted: str) -> Sandbox.Kind:
    """auto: a container for a task that needs an image or a network, else the lighter process sandbox."""
    if wanted == Rollout.Sandboxing.AUTO:
        needs_container = bool(task.image) or wants_network(task.settings.get("environment") or {})
        return Sandbox.Kind.DOCKER if needs_container else Sandbox.Kind.PROCESS
    return Sandbox.Kind(wanted)


def build_launch(
    rollout: Rollout, session: Session, budgets: Budgets, image: str | None = None, egress: Path | None = None
) -> Launch:
    """Raises InvalidHarness, HarnessMissing. image, egress: id of the task's image, its proxy; docker sandboxes only."""
    program = get_program(rollout.harness.program)
    check_version(rollout.harness, program)
    assignment = Assignment(instruction=rollout.task.instruction, session_key=session.key)
    prepared = program.prepare(assignment, check_settings(program.name, rollout.harness.settings))
    mounts = [Mount(source=mount.source, target=mount.target) for mount in prepared.mounts]
    if prepared.files:
        mounts.append(Mount(source=write_bundle(prepared.files), target=HARNESS_DIRECTORY))
    return Launch(
        rollout_id=rollout.pk,
        session_id=session.pk,
        purpose="agent",
        command=prepared.command,
        environment=prepared.environment,
        work_tree=start_tree_of(rollout.task),
        read_only=mounts,
        gateway=True,
        timeout_s=wall_time_s(rollout.task, budgets),
        limits=build_limits(rollout.task),
        image=image,
        egress=egress,
    )


def check_version(harness: Harness, program: HarnessProgram) -> None:
    """A harness is pinned: another version of its program may behave otherwise. Raises HarnessMissing."""
    installed = program.version()
    if installed and harness.version != installed:
        raise HarnessMissing(
            f"Harness {harness.name} is pinned to {program.name} {harness.version}, but {installed} is installed; "
            "install the pinned version, or add a harness for the installed one."
        )


def wall_time_s(task: Task, budgets: Budgets) -> float:
    """The stricter of the run's budget and the task's own timeout."""
    return min(budgets.wall_time_s, task.agent_timeout_s)


def start_tree_of(task: Task) -> Path | None:
    """What the agent finds in the beginning; None: what the task's image holds, else nothing."""
    return start_tree(Path(task.directory))


def build_limits(task: Task) -> Limits:
    environment: dict[str, Any] = task.settings.get("environment") or {}
    storage = int(environment.get("storage_mb") or DEFAULT_STORAGE_MB) * MIB
    return Limits(
        cpu_s=None,
        memory_bytes=int(environment.get("memory_mb") or DEFAULT_MEMORY_MB) * MIB,
        num_processes=MAX_PROCESSES,
        file_bytes=storage,
        disk_bytes=storage,
        cpus=environment.get("cpus"),
    )
