"""Prove that a task can be won and is not won by doing nothing.

From:  `manage.py tasks check`.
To:    a CheckResult a task; `save_result` keeps it on the Task row, where the catalog finds it.
Holds: everything runs in sandboxes, of the kind and from the image that a rollout would have; the solution is mounted
       read-only and has the network that the task names. At most `jobs` tasks are under way at once, each with one
       sandbox. What could not be graded here (no engine, no image) says nothing of the task and is not kept.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from django.db import connection
from django.utils import timezone

from environments.egress.opening import opened_for_check
from environments.images.errors import ImageUnavailable
from environments.models import Sandbox, Task
from environments.sandboxes import Handle, Launch, Mount, SandboxError, Sandboxes, get_sandboxes
from environments.starting import build_limits, choose_kind, find_image, start_tree_of
from environments.verification import Assessment, Verdict, verify

SOLUTION_DIRECTORY = "/gyre/solution"
MAX_LOG_CHARS = 4000
RENEW_S = 60.0


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """solution, nothing: the rewards; None: not graded. problems: one sentence for each thing that is wrong."""

    task: str
    sandbox: str = ""
    """Kind that it was graded in; empty: it could not be graded here."""
    solution: float | None = None
    nothing: float | None = None
    problems: tuple[str, ...] = ()
    log: str = ""
    """The end of what solution and verifier printed, where the solution did not earn 1."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.problems


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a task is graded. image: id of its image, which is on this host; None: a process sandbox has none."""

    sandboxes: Sandboxes
    image: str | None


class NoPlace(Exception):
    """The task cannot be graded here; the text says why and what to do."""


def find_place(task: Task, wanted: str) -> Place:
    """As a rollout would: builds or pulls the image where that is needed. Raises NoPlace."""
    kind = choose_kind(task, wanted)
    if task.image and kind == Sandbox.Kind.PROCESS:
        raise NoPlace(f"needs the image {task.image}, and process sandboxes have none; say --sandbox auto or docker.")
    sandboxes = get_sandboxes(kind)
    if reason := sandboxes.check():
        raise NoPlace(f"could not be graded here: {reason}")
    if kind == Sandbox.Kind.PROCESS:
        return Place(sandboxes=sandboxes, image=None)
    try:
        return Place(sandboxes=sandboxes, image=find_image(task, stop=threading.Event()))
    except ImageUnavailable as error:
        raise NoPlace(f"could not be graded here: {error}") from error


def check_task(task: Task, wanted: str = "auto") -> CheckResult:
    """Good: the solution earns the full reward 1 and doing nothing less. wanted: auto, process or docker."""
    started = time.monotonic()
    try:
        place = find_place(task, wanted)
    except NoPlace as error:
        return CheckResult(task=task.name, problems=(str(error),))
    problems: list[str] = []
    nothing = _grade(task, start_tree_of(task), place.sandboxes, place.image)
    if nothing.reward is None or nothing.reward >= 1:
        problems.append(f"doing nothing earns {_say(nothing)}.")
    solved, output = _solve(task, place)
    if solved is None:
        problems.append("has no solution/solve.sh; whether it can be won is not known.")
    elif solved.reward != 1:
        problems.append(f"the solution earns {_say(solved)}.")
    failed = solved is not None and solved.reward != 1
    return CheckResult(
        task=task.name,
        sandbox=place.sandboxes.kind,
        solution=solved.reward if solved else None,
        nothing=nothing.reward,
        problems=tuple(problems),
        log=f"{output}\n{solved.log if solved else ''}"[-MAX_LOG_CHARS:].strip() if failed else "",
        seconds=round(time.monotonic() - started, 3),
    )


def check_tasks(
    tasks: Sequence[Task],
    wanted: str = "auto",
    *,
    jobs: int,
    say: Callable[[CheckResult, int], None] = lambda result, done: None,
) -> list[CheckResult]:
    """Check them all, `jobs` at once, and keep the results; in order of the tasks. say: told of each as it ends."""

    def check(task: Task) -> CheckResult:
        try:
            result = check_task(task, wanted)
        except (SandboxError, OSError) as error:
            result = CheckResult(task=task.name, problems=(f"could not be graded here: {error}",))
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


def kept_result(task: Task, wanted: str) -> CheckResult | None:
    """What an earlier check found, where it was good and in the kind of sandbox that is wanted now."""
    known = {field.name for field in fields(CheckResult)}
    if not task.checked_at or task.check_result.get("problems") != []:
        return None
    if task.check_result.get("sandbox") != choose_kind(task, wanted):
        return None
    return CheckResult(**{name: value for name, value in task.check_result.items() if name in known} | {"problems": ()})


def _as_they_end(
    pool: ThreadPoolExecutor, check: Callable[[Task], CheckResult], tasks: Iterable[Task]
) -> Iterator[tuple[Task, "Future[CheckResult]"]]:
    futures = {pool.submit(check, task): task for task in tasks}
    for future in as_completed(futures):
        yield futures[future], future


def save_result(task: Task, result: CheckResult) -> None:
    if not result.sandbox:
        return
    values = asdict(result) | {"problems": list(result.problems)}
    Task.objects.filter(pk=task.pk).update(checked_at=timezone.now(), check_result=values)


def _solve(task: Task, place: Place) -> tuple[Verdict | None, str]:
    """Run the solution and grade what it leaves; None where there is no solution."""
    if not (Path(task.directory) / "solution" / "solve.sh").is_file():
        return None, ""
    with opened_for_check(task, place.sandboxes.kind) as (egress, denied):
        handle = place.sandboxes.launch(_build_launch(task, place.image, egress))
        try:
            _wait(handle, task.agent_timeout_s)
            handle.stop()
            output = handle.read_output(0).decode(errors="replace").replace("\0", "\ufffd")
            output += "".join(f"\nnetwork: {line}" for line in denied)
            return _grade(task, handle.work_tree, place.sandboxes, handle.keep_image()), output
        finally:
            handle.remove()


def _grade(task: Task, work_tree: Path | None, sandboxes: Sandboxes, image: str | None) -> Verdict:
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


def _build_launch(task: Task, image: str | None, egress: Path | None) -> Launch:
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
        image=image,
        egress=egress,
    )


def _wait(handle: Handle, timeout_s: float) -> None:
    """Until it has ended; its sandbox stays leased meanwhile."""
    renewed_at = time.monotonic()
    deadline = renewed_at + timeout_s + 10
    while handle.status().running and time.monotonic() < deadline:
        if time.monotonic() > renewed_at + RENEW_S:
            handle.renew()
            renewed_at = time.monotonic()
        time.sleep(0.02)


def _say(verdict: Verdict) -> str:
    return f"no readable reward ({verdict.error})" if verdict.reward is None else f"reward {verdict.reward:g}"
