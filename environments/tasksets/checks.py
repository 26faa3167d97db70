"""Prove that a task can be won and is not won by doing nothing.

From:  `manage.py tasks check`.
To:    a CheckResult a task; `save_result` keeps it on the Task row, where the catalog finds it.
Holds: everything runs in sandboxes, as it would in a rollout; the solution is mounted read-only. At most `jobs` tasks
       are under way at once, each with one sandbox.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from django.db import connection
from django.utils import timezone

from environments.models import Task
from environments.sandboxes import Handle, Launch, Mount, SandboxError, Sandboxes
from environments.starting import build_limits, start_tree_of
from environments.verification import Assessment, Verdict, verify

SOLUTION_DIRECTORY = "/gyre/solution"
MAX_LOG_CHARS = 4000


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """solution, nothing: the rewards; None: not graded. problems: one sentence for each thing that is wrong."""

    task: str
    solution: float | None = None
    nothing: float | None = None
    problems: tuple[str, ...] = ()
    log: str = ""
    """The end of what solution and verifier printed, where the solution did not earn 1."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.problems


def check_task(task: Task, sandboxes: Sandboxes) -> CheckResult:
    """Good: the solution earns the full reward 1 and doing nothing less."""
    started = time.monotonic()
    if task.image:
        problem = f"needs the image {task.image}; not checked, process sandboxes have none."
        return CheckResult(task=task.name, problems=(problem,))
    problems: list[str] = []
    nothing = _grade(task, start_tree_of(task), sandboxes)
    if nothing.reward is None or nothing.reward >= 1:
        problems.append(f"doing nothing earns {_say(nothing)}.")
    solved, output = _solve(task, sandboxes)
    if solved is None:
        problems.append("has no solution/solve.sh; whether it can be won is not known.")
    elif solved.reward != 1:
        problems.append(f"the solution earns {_say(solved)}.")
    failed = solved is not None and solved.reward != 1
    return CheckResult(
        task=task.name,
        solution=solved.reward if solved else None,
        nothing=nothing.reward,
        problems=tuple(problems),
        log=f"{output}\n{solved.log if solved else ''}"[-MAX_LOG_CHARS:].strip() if failed else "",
        seconds=round(time.monotonic() - started, 3),
    )


def check_tasks(
    tasks: Sequence[Task],
    sandboxes: Sandboxes,
    *,
    jobs: int,
    say: Callable[[CheckResult, int], None] = lambda result, done: None,
) -> list[CheckResult]:
    """Check them all, `jobs` at once, and keep the results; in order of the tasks. say: told of each as it ends."""

    def check(task: Task) -> CheckResult:
        try:
            result = check_task(task, sandboxes)
        except (SandboxError, OSError) as error:
            result = CheckResult(task=task.name, problems=(f"could not be checked: {error}",))
        try:
            save_result(task, result)
        finally:
            connection.close()
        return result

    found: dict[str, CheckResult] = {}
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        for number, (task, future) in enumerate(_as_they_end(pool, check, tasks), 1):
            found[str(task.pk)] = future.result()
            say(future.result(), number)
    return [found[str(task.pk)] for task in tasks]


def _as_they_end(
    pool: ThreadPoolExecutor, check: Callable[[Task], CheckResult], tasks: Iterable[Task]
) -> Iterator[tuple[Task, "Future[CheckResult]"]]:
    futures = {pool.submit(check, task): task for task in tasks}
    for future in as_completed(futures):
        yield futures[future], future


def save_result(task: Task, result: CheckResult) -> None:
    values = asdict(result) | {"problems": list(result.problems)}
    Task.objects.filter(pk=task.pk).update(checked_at=timezone.now(), check_result=values)


def _solve(task: Task, sandboxes: Sandboxes) -> tuple[Verdict | None, str]:
    """Run the solution and grade what it leaves; None where there is no solution."""
    if not (Path(task.directory) / "solution" / "solve.sh").is_file():
        return None, ""
    handle = sandboxes.launch(_build_launch(task))
    try:
        _wait(handle, task.agent_timeout_s)
        handle.stop()
        output = handle.read_output(0).decode(errors="replace").replace("\0", "\ufffd")
        return _grade(task, handle.work_tree, sandboxes, handle.keep_image()), output
    finally:
        handle.remove()


def _grade(task: Task, work_tree: Path | None, sandboxes: Sandboxes, image: str | None = None) -> Verdict:
    assessment = Assessment(
        rollout_id=None,
        task_directory=Path(task.directory),
        work_tree=work_tree,
        environment=task.settings.get("verifier", {}).get("env", {}),
        limits=build_limits(task),
        deadline_s=task.verifier_timeout_s,
        image=image,
    )
    return verify(assessment, sandboxes, threading.Event())


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


def _say(verdict: Verdict) -> str:
    return f"no readable reward ({verdict.error})" if verdict.reward is None else f"reward {verdict.reward:g}"
