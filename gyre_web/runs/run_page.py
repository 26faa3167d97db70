"""Read one run for its page: where it stands, its tiles, strip, groups, events and config.

Holds: a bounded number of queries, whatever the number of rollouts.
Never: writes.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, Q
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils import timezone

from environments.models import Engine, Outcome, Rollout
from gyre_web.runs import metric_keys
from gyre_web.runs.selectors import load_idle_shares
from gyre_web.runs.strip import WINDOWS, Strip, build_strip
from training.config import RunConfig
from training.metrics import define
from training.models import Attempt, Cell, Group, Member, Metric, Run, RunEvent, Version
from training.services import config_to_toml, differences

FAILED_OUTCOMES = (
    Outcome.SANDBOX_FAILED,
    Outcome.IMAGE_UNAVAILABLE,
    Outcome.VERIFIER_ERROR,
    Outcome.LOST,
    Outcome.OVERALL_TIMEOUT,
)

Points = dict[tuple[str, str], tuple[list[int], list[float]]]
"""(kind, key) -> steps and values, in order of step."""
MAX_POINTS = 1500
"""Of a charted series; more are thinned evenly, the last one stays."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure: value as text, what it means, its raw key, and a note below."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    meaning: str = ""
    key: str = ""
    tone: str = ""


def access_run(run_id: UUID, number: str = "") -> tuple[Run, Attempt, list[Attempt]]:
    """The run, the attempt that is shown (the latest unless `number` says), and all its attempts. Raises Http404."""
    run = get_object_or_404(Run.objects.select_related("owner", "cloned_from"), pk=run_id)
    attempts = list(run.attempts.order_by("-number"))
    if not attempts:
        raise Http404("This run has no attempt.")
    shown = next((attempt for attempt in attempts if str(attempt.number) == number), attempts[0])
    return run, shown, attempts


def kind_of(attempt: Attempt) -> str:
    return str(attempt.config.get("kind", "rl"))


def build_tiles(attempt: Attempt) -> list[Tile]:
    if kind_of(attempt) != "rl":
        return build_offline_tiles(attempt)
    series = load_series(attempt)
    counts = count_rollouts(attempt)
    return [
        reward_tile(series.get(metric_keys.REWARD, [])),
        pass_tile(series.get(metric_keys.SOLVED, []), counts),
        no_signal_tile(attempt),
        error_tile(counts),
        staleness_tile(attempt),
        speed_tile(attempt),
        idle_tile(attempt),
    ]


def build_offline_tiles(attempt: Attempt) -> list[Tile]:
    """Of a run without an online phase: how its steps went, and how good version 0 is."""
    tiles = []
    if kind_of(attempt) in ("supervised", "preference"):
        rows = Metric.objects.filter(attempt=attempt, kind=kind_of(attempt)).order_by("step")
        found: dict[str, list[float]] = defaultdict(list)
        for key, value in rows.values_list("key", "value"):
            found[key].append(value)
        tiles = [offline_tile(found, key) for key in OFFLINE_TILES[kind_of(attempt)]]
        tiles.append(dropped_tile(found))
    return [*tiles, *pass_at_tiles(attempt), speed_tile(attempt), idle_tile(attempt)]


OFFLINE_TILES = {"supervised": ("loss", "entropy", "grad_norm"), "preference": ("loss", "pair_accuracy", "pair_margin")}


def offline_tile(found: dict[str, list[float]], key: str) -> Tile:
    values, known = found.get(key, []), define(key)
    note = f"{values[0]:.3g} at step 1, {len(values)} steps" if values else "after the first step"
    value = f"{values[-1]:.3g}" if values else "–"
    return Tile(label=known.label, value=value, unit=known.unit, note=note, meaning=known.meaning, key=key)


def dropped_tile(found: dict[str, list[float]]) -> Tile:
    number, known = int(sum(found.get("dropped_steps", []))), define("dropped_steps")
    return Tile(
        label="Dropped", value=str(number), unit="steps", note="loss or gradient not finite", meaning=known.meaning,
        key="dropped_steps", tone="bad" if number else "",
    )  # fmt: skip


def pass_at_tiles(attempt: Attempt) -> list[Tile]:
    """pass@k of the newest evaluation, with its interval."""
    versions = Version.objects.filter(attempt=attempt).order_by("-number").values_list("evaluation", flat=True)
    found: dict[str, Any] = next(
        (each["heldout"]["pass_at"] for each in versions if each.get("heldout", {}).get("pass_at")), {}
    )
    return [
        Tile(
            label=f"pass@{k}",
            value=f"{100 * each['value']:.1f}",
            unit="%",
            note=f"{100 * each['low']:.1f}–{100 * each['high']:.1f} % ({each['method']}, {each['tasks']} tasks)",
            meaning=f"{define('pass_at').meaning} The interval holds the true value in 95 of 100 such evaluations.",
            key=f"pass_at/{k}",
        )
        for k, each in found.items()
    ]


def load_series(attempt: Attempt) -> dict[str, list[float]]:
    keys = (metric_keys.REWARD, metric_keys.SOLVED)
    found: dict[str, list[float]] = {}
    rows = Metric.objects.filter(attempt=attempt, kind="policy", key__in=keys).order_by("step")
    for key, value in rows.values_list("key", "value"):
        found.setdefault(key, []).append(value)
    return found


def count_rollouts(attempt: Attempt) -> dict[str, int]:
    """Of the attempt's training rollouts: ended, scored, passed, failed on our side, going on."""
    ended = Q(rollout__state=Rollout.State.ENDED)
    found = Member.objects.filter(group__attempt=attempt).aggregate(
        ended=Count("pk", filter=ended),
        scored=Count("pk", filter=ended & Q(rollout__reward__isnull=False)),
        passed=Count("pk", filter=ended & Q(rollout__reward__gte=1.0)),
        failed=Count("pk", filter=ended & Q(rollout__outcome__in=FAILED_OUTCOMES)),
        live=Count("pk", filter=~ended),
    )
    return {key: int(value) for key, value in found.items()}


def reward_tile(values: list[float]) -> Tile:
    meaning = "Mean reward of the rollouts that the last step trained on, as judged."
    if not values:
        return Tile(label="Reward", value="–", note="after the first step", meaning=meaning, key=metric_keys.REWARD)
    change = values[-1] - values[0]
    arrow = "▲" if change > 0 else "▼" if change < 0 else "="
    note = f"{arrow} {abs(change):.2f} since step 1" if len(values) > 1 else "step 1"
    return Tile(label="Reward", value=f"{values[-1]:.2f}", note=note, meaning=meaning, key=metric_keys.REWARD)


def pass_tile(values: list[float], counts: dict[str, int]) -> Tile:
    meaning = "Share of the last step's counting rollouts with a reward above 0. Below: of all, with the full reward."
    overall = counts["passed"] / counts["scored"] if counts["scored"] else None
    value = values[-1] if values else overall
    return Tile(
        label="Pass rate",
        value="–" if value is None else f"{100 * value:.0f}",
        unit="" if value is None else "%",
        note="no rollout scored yet" if overall is None else f"{100 * overall:.0f} % of {counts['scored']:,} in all",
        meaning=meaning,
        key=metric_keys.SOLVED,
    )


def no_signal_tile(attempt: Attempt) -> Tile:
    eaten = Group.objects.filter(attempt=attempt, state=Group.State.EATEN)
    found = eaten.aggregate(all=Count("pk"), none=Count("pk", filter=Q(no_signal=True)))
    share = found["none"] / found["all"] if found["all"] else None
    return Tile(
        label="No signal",
        value="–" if share is None else f"{100 * share:.0f}",
        unit="" if share is None else "%",
        note=f"{found['none']} of {found['all']} groups" if share is not None else "no group eaten yet",
        meaning="Share of the groups eaten so far whose rewards are all equal: they teach nothing.",
        key=metric_keys.NO_SIGNAL,
    )


def error_tile(counts: dict[str, int]) -> Tile:
    share = counts["failed"] / counts["ended"] if counts["ended"] else None
    return Tile(
        label="Errors",
        value="–" if share is None else f"{100 * share:.1f}",
        unit="" if share is None else "%",
        note="no rollout ended yet" if share is None else f"{counts['failed']} of {counts['ended']:,} rollouts",
        meaning="Share of ended rollouts that our side failed (sandbox, verifier, lost): never scored, never a zero.",
        key="rollout.outcome",
        tone="bad" if share is not None and share > 0.1 else "",
    )


def staleness_tile(attempt: Attempt) -> Tile:
    found = Member.objects.filter(group__attempt=attempt, staleness__isnull=False).aggregate(
        oldest=Max("staleness"), version=Max("rollout__newest_version")
    )
    allowed = attempt.config.get("schedule", {}).get("staleness", 0)
    return Tile(
        label="Staleness",
        value="–" if found["oldest"] is None else str(found["oldest"]),
        unit="" if found["oldest"] is None else "versions",
        note=f"dispatch may run {allowed} ahead",
        meaning="The oldest rollout trained so far: version in training minus its oldest sampling version.",
        key=metric_keys.STALENESS,
    )


def speed_tile(attempt: Attempt) -> Tile:
    engines = list(Engine.objects.filter(pool=attempt.pool, state=Engine.State.SERVING))
    value = sum(engine.tokens_per_s for engine in engines) if engines else None
    note = f"{len(engines)} engine{'s' if len(engines) != 1 else ''} serving" if engines else "no engine serves now"
    return Tile(
        label="Sampling",
        value="–" if value is None else f"{value:,.0f}",
        unit="" if value is None else "tokens/s",
        note=note,
        meaning="Tokens that the engines sample a second, now.",
        key="Engine.tokens_per_s",
    )


def idle_tile(attempt: Attempt) -> Tile:
    share = load_idle_shares([attempt]).get(attempt.pk)
    return Tile(
        label="Idle",
        value="–" if share is None else f"{100 * share:.0f}",
        unit="" if share is None else "%",
        note="of the cells' time",
        meaning="Share of the cells' time in which they neither served nor trained.",
        key="Cell.history",
    )


def load_strip(attempt: Attempt, window: str) -> Strip | None:
    """None while no cell has done anything."""
    cells = [cell for cell in Cell.objects.filter(attempt=attempt).order_by("index") if cell.history]
    if not cells:
        return None
    end = attempt.ended_at or timezone.now()
    first = min(datetime.fromisoformat(cell.history[0][0]) for cell in cells)
    span = WINDOWS.get(window)
    start = first if span is None else max(first, end - span)
    published = Version.objects.filter(attempt=attempt, published_at__isnull=False)
    marks = [(number, at) for number, at in published.values_list("number", "published_at") if at is not None]
    return build_strip(cells=cells, published=marks, start=start, end=max(end, start + timedelta(seconds=10)))


def load_events(attempt: Attempt, limit: int = 40) -> list[RunEvent]:
    return list(RunEvent.objects.filter(attempt=attempt).order_by("-id")[:limit])


def load_versions(attempt: Attempt) -> list[Version]:
    return list(Version.objects.filter(attempt=attempt).order_by("-number"))


def load_chart_data(attempt: Attempt) -> dict[str, Any]:
    """All charted series of an attempt: {"charts": [{id, title, ..., series: [{name, key, x, y}]}], "step": n}."""
    shown = metric_keys.charts_of(kind_of(attempt))
    keys = {series.key for chart in shown for series in chart.series}
    points: Points = defaultdict(lambda: ([], []))
    rows = Metric.objects.filter(attempt=attempt, key__in=keys).order_by("step")
    for kind, key, step, value in rows.values_list("kind", "key", "step", "value"):
        points[kind, key][0].append(step)
        points[kind, key][1].append(value)
    charts = [
        {
            "id": chart.id,
            "unit": chart.unit,
            "stacked": chart.stacked,
            "kind": chart.kind,
            "series": build_series(chart, points),
        }
        for chart in shown
    ]
    return {"step": attempt.step, "charts": charts}


def build_series(chart: metric_keys.Chart, points: Points) -> list[dict[str, Any]]:
    """Only those that were recorded."""
    found = []
    for line in chart.series:
        steps, values = points.get((chart.kind, line.key), ([], []))
        if not steps:
            continue
        every = -(-len(steps) // MAX_POINTS)
        chosen = sorted({*range(0, len(steps), every), len(steps) - 1})
        found.append(
            {
                "name": line.name,
                "key": line.key,
                "band": line.band,
                "x": [steps[i] for i in chosen],
                "y": [values[i] / chart.divide_by for i in chosen],
            }
        )
    return found


def describe_config(attempt: Attempt, attempts: list[Attempt]) -> dict[str, Any]:
    """The attempt's config as TOML, against the defaults and against the attempt before it."""
    config = RunConfig.model_validate(attempt.config)
    before = next((other for other in attempts if other.number == attempt.number - 1), None)
    return {
        "toml": config_to_toml(config),
        "differences": differences(config),
        "before": before,
        "before_differences": differences(config, RunConfig.model_validate(before.config)) if before else [],
    }
