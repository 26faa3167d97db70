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
MAX_FILES = 60
RECENT_ROLLOUTS = 100
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


def list_tasksets() -> "QuerySet[TaskSet]":
    return TaskSet.objects.annotate(
        num_tasks=Count("tasks"),
        num_heldout=Count("tasks", filter=Q(tasks__split=Task.Split.HELDOUT)),
        num_families=Count("tasks__family", distinct=True),
    )


def list_tasks(query: Any) -> "QuerySet[Task]":
    """Tasks with their pass rates; query: q, taskset, family, split, sort."""
    tasks = Task.objects.select_related("taskset").annotate(
        num_scored=Count("rollouts", filter=SCORED),
        num_passed=Count("rollouts", filter=SCORED & Q(rollouts__reward__gte=1.0)),
        last_at=Max("rollouts__created_at"),
    )
    for name, lookup in (("taskset", "taskset__name"), ("family", "family"), ("split", "split")):
        if query.get(name):
            tasks = tasks.filter(**{lookup: query[name]})
    if query.get("q", "").strip():
        text = query["q"].strip()
        tasks = tasks.filter(Q(name__icontains=text) | Q(instruction__icontains=text))
    return tasks.order_by(*ORDERS.get(query.get("sort", ""), ORDERS["name"]))


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


def load_files(task: Task) -> TaskFiles:
    """What is in the task's directory, by its role in the Harbor layout."""
    root = Path(task.directory)
    found: dict[str, list[TaskFile]] = {"instruction": [], "environment": [], "tests": [], "solution": [], "other": []}
    if not root.is_dir():
        return TaskFiles(**found, missing=True)
    paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for path in paths[:MAX_FILES]:
        relative = path.relative_to(root)
        top = relative.parts[0]
        role = (
            "instruction" if top == "instruction.md" else top if top in found and len(relative.parts) > 1 else "other"
        )
        found[role].append(read_file(path, str(relative)))
    return TaskFiles(**found, missing=False)


def read_file(path: Path, name: str) -> TaskFile:
    size = path.stat().st_size
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE_BYTES)
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
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
