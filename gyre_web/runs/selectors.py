"""Read runs for the list and for one page.

From:  rows of training and environments.
To:    frozen records for templates.
Holds: a bounded number of queries, whatever the number of runs.
Never: writes.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.http import Http404
from django.utils import timezone

from environments.models import Rollout
from gyre_web.runs.metric_keys import REWARD
from training.models import Attempt, Cell, Metric, Run

SORTS = {
    "name": "name",
    "state": "state_now",
    "step": "step_now",
    "owner": "owner__username",
    "age": "created_at",
}
GOING = (
    Attempt.State.QUEUED,
    Attempt.State.WARMING,
    Attempt.State.RUNNING,
    Attempt.State.PAUSED,
    Attempt.State.STOPPING,
)
PAGE = 50


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One line of the list: a run as its latest attempt stands."""

    run: Run
    attempt: Attempt
    model: str
    tasks: str
    harness: str
    kind: str
    num_steps: int
    rewards: list[float | None]
    num_live: int
    idle_share: float | None

    @property
    def reward(self) -> float | None:
        return next((value for value in reversed(self.rewards) if value is not None), None)


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """What the list shows; from the query string, unknown values ignored."""

    text: str = ""
    state: str = ""
    owner: str = ""
    sort: str = "-age"
    page: int = 1

    @classmethod
    def from_query(cls, query: Any) -> "RunFilter":
        sort = query.get("sort", "")
        page = query.get("page", "1")
        return cls(
            text=query.get("q", "").strip(),
            state=query.get("state", ""),
            owner=query.get("owner", ""),
            sort=sort if sort.removeprefix("-") in SORTS else "-age",
            page=int(page) if page.isdigit() and 0 < int(page) < 10_000 else 1,
        )


def filter_runs(wanted: RunFilter) -> "QuerySet[Run]":
    latest = Attempt.objects.filter(run=OuterRef("pk")).order_by("-number")
    runs = Run.objects.annotate(
        attempt_now=Subquery(latest.values("pk")[:1]),
        state_now=Subquery(latest.values("state")[:1]),
        step_now=Subquery(latest.values("step")[:1]),
    ).filter(attempt_now__isnull=False)
    if wanted.text:
        runs = runs.filter(
            Q(name__icontains=wanted.text)
            | Q(attempts__config__model__name__icontains=wanted.text)
            | Q(notes__icontains=wanted.text)
        ).distinct()
    if wanted.state == "going":
        runs = runs.filter(state_now__in=GOING)
    elif wanted.state == "over":
        runs = runs.exclude(state_now__in=GOING)
    elif wanted.state in Attempt.State.values:
        runs = runs.filter(state_now=wanted.state)
    if wanted.owner:
        runs = runs.filter(owner__username=wanted.owner)
    key = F(SORTS[wanted.sort.removeprefix("-")])
    order = key.desc(nulls_last=True) if wanted.sort.startswith("-") else key.asc(nulls_last=True)
    return runs.order_by(order, "-created_at").select_related("owner")


def list_runs(wanted: RunFilter) -> tuple[list[RunRow], int]:
    """The page's rows, and how many runs match in all. Six queries at most."""
    matching = filter_runs(wanted)
    start = (wanted.page - 1) * PAGE
    runs = list(matching[start : start + PAGE])
    attempts = Attempt.objects.in_bulk([run.attempt_now for run in runs])  # type: ignore[attr-defined]
    rewards = load_rewards(list(attempts.values()))
    live = count_live(list(attempts.values()))
    idle = load_idle_shares(list(attempts.values()))
    rows = []
    for run in runs:
        attempt = attempts[run.attempt_now]  # type: ignore[attr-defined]
        rows.append(build_row(run, attempt, rewards[attempt.pk], live.get(attempt.pk, 0), idle.get(attempt.pk)))
    return rows, matching.count()


def build_row(
    run: Run, attempt: Attempt, rewards: list[float | None], num_live: int, idle_share: float | None
) -> RunRow:
    config = attempt.config
    mixture = config.get("tasks", {}).get("mixture", [])
    return RunRow(
        run=run,
        attempt=attempt,
        model=config.get("model", {}).get("name", ""),
        tasks=", ".join(part.get("taskset", "") for part in mixture),
        harness=config.get("harness", {}).get("name", ""),
        kind=config.get("kind", "rl"),
        num_steps=config.get("optimization", {}).get("steps", 0),
        rewards=rewards,
        num_live=num_live,
        idle_share=idle_share,
    )


def latest_attempt(run_id: UUID | str) -> Attempt:
    """Raises Http404, also for what is no id."""
    try:
        found = Attempt.objects.filter(run_id=run_id).select_related("run").order_by("-number").first()
    except ValidationError as error:
        raise Http404("That is not the id of a run.") from error
    if found is None:
        raise Http404("There is no such run.")
    return found


def load_rewards(attempts: list[Attempt]) -> dict[UUID, list[float | None]]:
    found: dict[UUID, list[float | None]] = defaultdict(list)
    rows = Metric.objects.filter(attempt__in=attempts, kind="policy", key=REWARD).order_by("attempt", "step")
    for attempt_id, value in rows.values_list("attempt_id", "value"):
        found[attempt_id].append(value)
    return found


def count_live(attempts: list[Attempt]) -> dict[UUID, int]:
    """Rollouts of each attempt that started and did not end."""
    pools = {pool: attempt.pk for attempt in attempts for pool in (attempt.pool, f"{attempt.pool}-expert")}
    counted: dict[UUID, int] = defaultdict(int)
    rows = (
        Rollout.objects.filter(pool__in=pools)
        .exclude(state__in=(Rollout.State.ENDED, Rollout.State.QUEUED))
        .values("pool")
        .annotate(number=Count("pk"))
        .order_by()
    )
    for row in rows:
        counted[pools[row["pool"]]] += row["number"]
    return counted


def load_idle_shares(attempts: list[Attempt]) -> dict[UUID, float]:
    """Share of the cells' time in which they neither served nor trained."""
    ends = {attempt.pk: attempt.ended_at or timezone.now() for attempt in attempts}
    busy: dict[UUID, float] = defaultdict(float)
    whole: dict[UUID, float] = defaultdict(float)
    for attempt_id, history in Cell.objects.filter(attempt__in=attempts).values_list("attempt_id", "history"):
        for start, end, role in spans(history, ends[attempt_id]):
            seconds = (end - start).total_seconds()
            whole[attempt_id] += seconds
            busy[attempt_id] += seconds if role in (Cell.Role.SERVES, Cell.Role.TRAINS) else 0.0
    return {key: 1 - busy[key] / total for key, total in whole.items() if total > 0}


def spans(history: list[list[str]], end: datetime) -> list[tuple[datetime, datetime, str]]:
    """Cell.history as (start, end, role); the last role lasts until `end`."""
    stamps = [(datetime.fromisoformat(at), role) for at, role in history]
    return [(at, max(at, until), role) for (at, role), (until, _) in pairwise([*stamps, (end, "")])]
