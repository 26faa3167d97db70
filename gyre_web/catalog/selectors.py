"""Read the catalog: task sets and tasks with pass rates, models, harnesses, and a task's files.

Holds: a bounded number of queries a page; files are read only below their task's directory, and only so much of them.
Never: writes.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db.models import Count, Max, Q, QuerySet
from django.db.models.functions import Coalesce

from environments.harnesses import HARNESSES, InvalidHarness, check_settings
from environments.harnesses.bundles import find
from environments.models import Call, Harness, Model, Node, Rollout, Task, TaskSet

MAX_FILE_BYTES = 64 * 1024
RECENT_ROLLOUTS = 100
MAX_FILES = 40
"""Of each role."""
IGNORED = frozenset({"__pycache__"})
CHECKED = Q(tasks__checked_at__isnull=False)
SCORED = Q(rollouts__reward__isnull=False) & ~Q(rollouts__purpose=Rollout.Purpose.DEMONSTRATION)


@dataclass(frozen=True, kw_only=True)
class TaskFile:
    """text is None for what is no text; cut: only the beginning is in it."""

    path: str
    size_bytes: int
    text: str | None
    cut: bool


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    instruction: list[TaskFile]
    environment: list[TaskFile]
    tests: list[TaskFile]
    solution: list[TaskFile]
    other: list[TaskFile]
    missing: bool
    left_out: int = 0
    """Files that are there and not shown."""


def list_tasksets() -> "QuerySet[TaskSet]":
    """Each with its counts, and when and how its solution check went."""
    return TaskSet.objects.annotate(
        num_tasks=Count("tasks"),
        num_heldout=Count("tasks", filter=Q(tasks__split=Task.Split.HELDOUT)),
        num_families=Count("tasks__family", distinct=True),
        num_checked=Count("tasks", filter=CHECKED),
        num_wrong=Count("tasks", filter=CHECKED & ~Q(tasks__check_result__problems=[])),
        checked_at=Max("tasks__checked_at"),
    )


def list_versions(taskset: TaskSet) -> "QuerySet[TaskSet]":
    """All versions under its base name, newest first."""
    return TaskSet.objects.filter(base_name=taskset.base_name).order_by("-version")


def list_tasks(query: Any) -> "QuerySet[Task]":
    """Tasks with their pass rates; query: q, taskset, family, split, check, sort."""
    tasks = Task.objects.select_related("taskset").annotate(
        num_scored=Count("rollouts", filter=SCORED),
        num_passed=Count("rollouts", filter=SCORED & Q(rollouts__reward__gte=1.0)),
        last_at=Max("rollouts__created_at"),
    )
    for name, lookup in (("taskset", "taskset__name"), ("family", "family"), ("split", "split")):
        if query.get(name):
            tasks = tasks.filter(**{lookup: query[name]})
    tasks = tasks.filter(CHECKS.get(query.get("check", ""), Q()))
    if query.get("q", "").strip():
        text = query["q"].replace("\0", "").strip()
        tasks = tasks.filter(Q(name__icontains=text) | Q(instruction__icontains=text))
    return tasks.order_by(*ORDERS.get(query.get("sort", ""), ORDERS["name"]))


CHECKS = {
    "good": Q(checked_at__isnull=False, check_result__problems=[]),
    "wrong": Q(checked_at__isnull=False) & ~Q(check_result__problems=[]),
    "never": Q(checked_at__isnull=True),
}
"""How a task's solution check went."""

ORDERS: dict[str, tuple[Any, ...]] = {
    "name": ("taskset__name", "name"),
    "tried": (Coalesce("num_scored", 0).desc(), "name"),
    "last": (Max("rollouts__created_at").desc(nulls_last=True), "name"),
}


def pass_rates_by_version(task: Task) -> list[dict[str, Any]]:
    """[{version, scored, passed}] over the task's rollouts of all runs, newest version first."""
    rows = (
        task.rollouts.filter(reward__isnull=False, newest_version__isnull=False)
        .exclude(purpose=Rollout.Purpose.DEMONSTRATION)
        .values("newest_version")
        .annotate(scored=Count("pk"), passed=Count("pk", filter=Q(reward__gte=1.0)))
        .order_by("-newest_version")
    )
    return [
        {
            "version": row["newest_version"],
            "scored": row["scored"],
            "passed": row["passed"],
            "rate": row["passed"] / row["scored"],
        }
        for row in rows
    ]


def pass_rates_by_harness(task: Task) -> list[dict[str, Any]]:
    """[{harness, model, scored, passed}] over the task's rollouts of all runs and trials, most tried first."""
    rows = (
        task.rollouts.filter(reward__isnull=False)
        .exclude(purpose=Rollout.Purpose.DEMONSTRATION)
        .exclude(pool__startswith="expert-")
        .values("harness__name", "model__name")
        .annotate(scored=Count("pk"), passed=Count("pk", filter=Q(reward__gte=1.0)))
        .order_by("-scored", "harness__name")
    )
    return [
        {
            "harness": row["harness__name"],
            "model": row["model__name"],
            "scored": row["scored"],
            "passed": row["passed"],
        }
        for row in rows
    ]


def load_files(task: Task) -> TaskFiles:
    """What is in the task's directory, by its role in the Harbor layout."""
    root = Path(task.directory)
    found: dict[str, Any] = {"instruction": [], "environment": [], "tests": [], "solution": [], "other": []}
    if not root.is_dir():
        return TaskFiles(**found, missing=True)
    left_out = 0
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()):
        relative = path.relative_to(root)
        if IGNORED & set(relative.parts):
            continue
        top = relative.parts[0]
        role = (
            "instruction" if top == "instruction.md" else top if top in found and len(relative.parts) > 1 else "other"
        )
        if len(found[role]) >= MAX_FILES:
            left_out += 1
            continue
        found[role].append(read_file(path, str(relative)))
    return TaskFiles(**found, missing=False, left_out=left_out)


def read_file(path: Path, name: str) -> TaskFile:
    size = path.stat().st_size
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES)
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError as error:
        is_cut_character = size > len(data) and error.start > len(data) - 4
        text = data[: error.start].decode() if is_cut_character else None
    return TaskFile(path=name, size_bytes=size, text=text, cut=size > len(data))


def list_models() -> "QuerySet[Model]":
    return Model.objects.annotate(num_rollouts=Count("rollouts", distinct=True))


def list_harnesses() -> list[dict[str, Any]]:
    """Each harness with its rollouts' outcomes, the patterns of its calls, and what its program is known to do."""
    harnesses = Harness.objects.annotate(
        num_rollouts=Count("rollouts"), num_crashed=Count("rollouts", filter=Q(rollouts__outcome="harness_crash"))
    )
    patterns = (
        Call.objects.values("rollout__harness_id", "dialect", "streamed")
        .annotate(number=Count("pk"), aborted=Count("pk", filter=Q(state=Call.State.ABORTED)))
        .order_by("-number")
    )
    by_harness: dict[Any, list[dict[str, Any]]] = {}
    for row in patterns:
        by_harness.setdefault(row["rollout__harness_id"], []).append(dict(row))
    seen = see_recent_rollouts()
    return [
        {
            "harness": harness,
            "patterns": by_harness.get(harness.pk, []),
            "facts": describe_program(harness),
            "seen": seen.get(harness.pk, RecentlySeen()),
        }
        for harness in harnesses
    ]


@dataclass(frozen=True, kw_only=True)
class RecentlySeen:
    """Of a harness's rollouts among the last RECENT_ROLLOUTS of all."""

    num_rollouts: int = 0
    roles: list[tuple[str, int]] = field(default_factory=list)
    """Roots by what they are for."""
    differences: list[tuple[str, int]] = field(default_factory=list)
    """Forgiven while matching histories, by class."""


def see_recent_rollouts() -> dict[Any, RecentlySeen]:
    """By harness: roles of roots and differences, over the last rollouts."""
    recent = list(Rollout.objects.order_by("-created_at").values_list("pk", "harness_id", "drift")[:RECENT_ROLLOUTS])
    numbers: Counter[Any] = Counter(harness for _, harness, _ in recent)
    differences: dict[Any, Counter[str]] = {}
    for _, harness, drift in recent:
        differences.setdefault(harness, Counter()).update(drift)
    roots = (
        Node.objects.filter(rollout_id__in=[pk for pk, _, _ in recent], parent=None)
        .values_list("rollout__harness_id", "branch_role")
        .annotate(number=Count("pk"))
        .order_by("-number")
    )
    roles: dict[Any, list[tuple[str, int]]] = {}
    for harness, role, number in roots:
        roles.setdefault(harness, []).append((str(role), number))
    return {
        harness: RecentlySeen(
            num_rollouts=number, roles=roles.get(harness, []), differences=differences[harness].most_common()
        )
        for harness, number in numbers.items()
    }


def describe_program(harness: Harness) -> dict[str, Any]:
    """What is known of the program behind it; `problem` where its settings do not fit this version."""
    program = HARNESSES.get(harness.program)
    if program is None:
        return {"problem": f"This version knows no program {harness.program}."}
    try:
        line, problem = program.launch_line(check_settings(harness.program, harness.settings)), ""
    except InvalidHarness as error:
        line, problem = "", str(error)
    return {
        "launch_line": line,
        "problem": problem,
        "dialects": program.habits.dialects,
        "licence": program.licence,
        "retries": program.habits.retries,
        "history": program.habits.history,
        "compacts": program.habits.compacts,
        "not_replayable": program.habits.not_replayable,
        "is_installed": program.recipe is None or find(program.recipe) is not None,
    }


def programs_to_add() -> list[dict[str, Any]]:
    """Programs of which a harness can be made."""
    return [
        {
            "name": program.name,
            "version": "" if program.recipe is None else program.recipe.version,
            "licence": program.licence,
            "dialects": program.habits.dialects,
        }
        for program in HARNESSES.values()
    ]
