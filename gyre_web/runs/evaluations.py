"""Read evaluations: all of them, and two side by side on the tasks that both tried.

From:  Version.evaluation (training.scheduling.evaluation) and the rollouts that it names.
To:    /evaluations and REST.
Holds: an evaluation of any run can be compared with any other; only tasks that both scored count in a difference; a
       bounded number of queries.
Never: writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from environments.models import Task
from training.kinds import WORDS
from training.models import Version
from training.pass_rates import Counts, Difference, Rate, ks_up_to, paired_difference, rate
from training.scheduling.evaluation import task_counts

MOST_LISTED = 200


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One finished evaluation: which weights, with which harness, on which tasks."""

    version: Version
    counts: Counts

    @property
    def name(self) -> str:
        attempt = self.version.attempt
        return f"{attempt.run.name}/{attempt.number}/{self.version.number}"

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.version.attempt.config)

    @property
    def subject(self) -> str:
        """The model, or the version that an evaluation run measured."""
        model = self.config.get("model", {})
        measured = self.config.get("kind") == "evaluation" and model.get("start_from")
        return str(measured or model.get("name", ""))

    @property
    def harness(self) -> str:
        return str(self.config.get("harness", {}).get("name", ""))

    @property
    def kind(self) -> str:
        return WORDS.get(str(self.config.get("kind", "rl")), "")

    @property
    def tasksets(self) -> str:
        return ", ".join(part["taskset"] for part in self.config.get("tasks", {}).get("mixture", []))

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.version.evaluation["heldout"])

    @property
    def samples(self) -> int:
        return int(self.state.get("samples", 1))


@dataclass(frozen=True, kw_only=True)
class Side:
    """One measure on both sides. name: pass@k, or a family."""

    name: str
    a: Rate | None
    b: Rate | None
    difference: Difference | None


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    task: Task
    a: tuple[int, int]
    b: tuple[int, int]

    @property
    def change(self) -> float | None:
        if not self.a[0] or not self.b[0]:
            return None
        return self.b[1] / self.b[0] - self.a[1] / self.a[0]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    a: Evaluation
    b: Evaluation
    overall: list[Side]
    families: list[Side]
    tasks: list[TaskRow]
    num_common: int
    same_tasks: bool


def finished_evaluations() -> "QuerySet[Version]":
    done = Version.objects.filter(evaluation__heldout__state="done").select_related("attempt__run__owner")
    return done.order_by("-attempt__created_at", "-number")


def list_evaluations() -> list[Evaluation]:
    """Newest first; without counts, which only a comparison needs."""
    return [Evaluation(version=version, counts={}) for version in finished_evaluations()[:MOST_LISTED]]


def find_evaluation(version_pk: str) -> Evaluation | None:
    if not version_pk.isdigit() or len(version_pk) > 18:
        return None
    version = finished_evaluations().filter(pk=int(version_pk)).first()
    return None if version is None else Evaluation(version=version, counts=task_counts(version))


def compare(a: Evaluation, b: Evaluation) -> Comparison:
    common = [task for task in a.counts if task in b.counts]
    tasks = Task.objects.select_related("taskset").in_bulk(common)
    by_id = {str(pk): task for pk, task in tasks.items()}
    families: dict[str, list[str]] = {}
    for task_id in common:
        if task_id in by_id:
            families.setdefault(by_id[task_id].family or "other", []).append(task_id)
    rows = [TaskRow(task=by_id[pk], a=a.counts[pk], b=b.counts[pk]) for pk in common if pk in by_id]
    return Comparison(
        a=a,
        b=b,
        overall=[side(f"pass@{k}", a.counts, b.counts, k) for k in ks_up_to(min(a.samples, b.samples))],
        families=[
            side(name, only(a.counts, ids), only(b.counts, ids), 1) for name, ids in sorted(families.items())
        ],
        tasks=sorted(rows, key=lambda row: (row.change is None, -abs(row.change or 0.0), row.task.name)),
        num_common=len(common),
        same_tasks=set(a.counts) == set(b.counts),
    )  # fmt: skip


def only(counts: Counts, tasks: list[str]) -> dict[str, tuple[int, int]]:
    return {task: counts[task] for task in tasks if task in counts}


def side(name: str, a: Counts, b: Counts, k: int) -> Side:
    return Side(name=name, a=rate(a, k), b=rate(b, k), difference=paired_difference(a, b, k))


def evaluation_out(found: Evaluation, counts: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Any]:
    """For REST."""
    return {
        "id": found.version.pk,
        "name": found.name,
        "subject": found.subject,
        "kind": found.config.get("kind", "rl"),
        "harness": found.harness,
        "tasksets": found.tasksets,
        "version": found.version.number,
        "samples_per_task": found.samples,
        "scored": found.state.get("n", 0),
        "solved": found.state.get("solved", 0),
        "missing": found.state.get("missing", 0),
        "pass_at": found.state.get("pass_at", {}),
    }
