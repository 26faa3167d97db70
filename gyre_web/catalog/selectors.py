"""Read the catalog: task sets and tasks with pass rates, models, harnesses, and a task's files.

Holds: a bounded number of queries a page; files are read only below their task's directory, and only so much of them.
Never: writes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db.models import Count, Max, Q, QuerySet
from django.db.models.functions import Coalesce

from environments.models import Call, Harness, Model, Rollout, Task, TaskSet

MAX_FILE_BYTES = 64 * 1024
MAX_FILES = 60
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
    """Each harness with its rollouts' outcomes and the patterns of its calls."""
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
    return [{"harness": harness, "patterns": by_harness.get(harness.pk, [])} for harness in harnesses]
