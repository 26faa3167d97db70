"""Prove that a task can be won and is not won by doing nothing.

From:  `manage.py tasks check`.
To:    one sentence for each thing that is wrong.
Holds: everything runs in sandboxes, as it would in a rollout; the solution is mounted read-only.
"""

import threading
import time
from pathlib import Path

from environments.models import Task
from environments.sandboxes import Handle, Launch, Mount, Sandboxes
from environments.starting import build_limits, start_tree_of
from environments.verification import Assessment, verify

SOLUTION_DIRECTORY = "/gyre/solution"


def check_task(task: Task, sandboxes: Sandboxes) -> list[str]:
    """[]: the solution earns the full reward 1 and doing nothing less."""
    if task.image:
        return [f"{task.name}: needs the image {task.image}; not checked, process sandboxes have none."]
    problems: list[str] = []
    nothing = _grade(task, start_tree_of(task), sandboxes)
    if nothing is None or nothing >= 1:
        problems.append(f"{task.name}: doing nothing earns {_say(nothing)}.")
    if not (Path(task.directory) / "solution" / "solve.sh").is_file():
        return [*problems, f"{task.name}: has no solution/solve.sh; whether it can be won is not known."]
    handle = sandboxes.launch(_build_launch(task))
    try:
        _wait(handle, task.agent_timeout_s)
        handle.stop()
        solved = _grade(task, handle.work_tree, sandboxes)
    finally:
        handle.remove()
    if solved != 1:
        problems.append(f"{task.name}: the solution earns {_say(solved)}.")
    return problems


def _grade(task: Task, work_tree: Path, sandboxes: Sandboxes) -> float | None:
    assessment = Assessment(
        rollout_id=None,
        task_directory=Path(task.directory),
        work_tree=work_tree,
        environment=task.settings.get("verifier", {}).get("env", {}),
        limits=build_limits(task),
        deadline_s=task.verifier_timeout_s,
    )
    return verify(assessment, sandboxes, threading.Event()).reward


def _build_launch(task: Task) -> Launch:
    return Launch(
        rollout_id=None,
        session_id=None,
        purpose="agent",
        command=("/bin/sh", f"{SOLUTION_DIRECTORY}/solve.sh"),
        environment={},
        work_tree=start_tree_of(task),
        read_only=(Mount(source=Path(task.directory) / "solution", target=SOLUTION_DIRECTORY),),
        gateway=False,
        timeout_s=task.agent_timeout_s,
        limits=build_limits(task),
    )


def _wait(handle: Handle, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s + 10
    while handle.status().running and time.monotonic() < deadline:
        time.sleep(0.02)


def _say(reward: float | None) -> str:
    return "no readable reward" if reward is None else f"reward {reward:g}"
