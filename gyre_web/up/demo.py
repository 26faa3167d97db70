"""The demo: a small model learns to use a shell, for real, in about half an hour on two cores.

From:  `manage.py demo`, `manage.py up --demo`.
To:    an ordinary run with the recipe below, and what came of it: success on held-out tasks before and after, the
       paired interval, seconds by phase, memory, and what the same time of supervised training gives instead.
Holds: the last version is compared, not the best one; held-out tasks are never trained on; the same tasks are used
       before and after.

Recipe: a warm start on demonstrations, then GRPO steps of 12 tasks x 6 rollouts (docs/log.md has the measurements).
"""

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection

from environments.catalog import ensure_builtin_model
from environments.harnesses import ensure_builtin_harness
from environments.models import Task
from environments.tasksets import ensure_builtin_taskset
from gyre_web.up.processes import is_same_process
from gyre_web.up.supervisor import adopt_urls, running_system
from training.config import RunConfig
from training.models import Attempt, Metric, Run, Version
from training.scheduling.evaluation import heldout_rewards
from training.services import check_config, request, start_run

Say = Callable[[str], None]
DEMONSTRATIONS = 84
"""Held-out success is then about 40 % (208 gave 73 %, which leaves little to learn; 24 gave none)."""
HELDOUT_TASKS = 120
STEPS = 14
LOOK_S = 1.0
DATABASE_PATIENCE_S = 120.0
"""Postgres may be restarted under a run."""
NUM_RESAMPLES = 10_000
HEADLESS_PARTS = frozenset({"gateway", "rollouts", "cells", "controller"})


class DemoError(RuntimeError):
    """The demo did not reach its end; the message says why."""


# Start.


def build_config(*, seed: int, steps: int | None = None) -> RunConfig:
    """The recipe; everything that it does not say is a default of training.config.

    An expert needs two calls. Without the limit and the zero a policy forgot to submit, since its work was scored all the
    same: 2.1 calls a rollout became 4.8 within four steps. Without the KL a policy may unlearn to end its turns in one step,
    and all of its rollouts fail from then on: no group has a signal that would bring it back (docs/log.md, 2026-12-07).
    """
    data: dict[str, Any] = {
        "seed": seed,
        "tasks": {"curriculum": "learnability"},
        "warm_start": {"demonstrations": DEMONSTRATIONS},
        "harness": {"max_running": 32},
        "sampling": {"max_tokens": 64},
        "budgets": {"max_calls": 5},
        "objective": {"overlong": "zero", "kl_coefficient": 0.05},
        "schedule": {"checkpoint_every": 3},
        "evaluation": {"tasks": HELDOUT_TASKS},
        "optimization": {
            "steps": steps or STEPS,
            "learning_rate": 4e-5,
            "warmup_steps": 3,
            "micro_batch_tokens": 2048,
        },
    }
    return RunConfig.model_validate(data)


def ensure_catalog(say: Say) -> None:
    """Model, tasks and harness of the demo; made once, found again afterwards."""
    say("model: SmolLM2-135M-Instruct (made ready once, about half a minute)")
    ensure_builtin_model()
    say("tasks: shell-and-python, generated")
    ensure_builtin_taskset()
    say("harness: mini-swe-agent")
    ensure_builtin_harness()


def start_demo(
    *, seed: int, say: Say, steps: int | None = None, config: RunConfig | None = None, name: str = ""
) -> Run:
    """Start the demo's run inside a running system. Raises DemoError when the catalog does not suffice."""
    ensure_catalog(say)
    config, errors = check_config((config or build_config(seed=seed, steps=steps)).model_dump(mode="json"))
    if config is None:
        raise DemoError("; ".join(f"{error.field}: {error.message} {error.remedy}" for error in errors))
    attempt = start_run(name=free_name(name or f"demo-{seed}"), config=config)
    say(f"run {attempt.run.name} was started")
    return attempt.run


def free_name(wanted: str) -> str:
    taken = set(Run.objects.filter(name__startswith=wanted).values_list("name", flat=True))
    if wanted not in taken:
        return wanted
    return next(f"{wanted}-{n}" for n in range(2, len(taken) + 3) if f"{wanted}-{n}" not in taken)


@contextlib.contextmanager
def some_system(say: Say) -> Iterator[None]:
    """The system that already runs here, or one that is started for the block and ended after it."""
    if urls := running_urls():
        say("using the system that runs here")
        adopt_urls(urls)
        yield
        return
    say("starting services, gateway, workers and controller")
    with running_system(only=HEADLESS_PARTS, log_path=Path(settings.DATA_DIR) / "demo.log"):
        yield


def running_urls() -> dict[str, str] | None:
    """Of `manage.py up` for this data directory, while it runs."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        record = json.loads((Path(settings.DATA_DIR) / "up.json").read_text())
        process = record["processes"]["up"]
        if is_same_process(process["pid"], process["started"]):
            return dict(record["urls"])
    return None


# Follow.


def follow(attempt: Attempt, say: Say, *, until: Callable[[Attempt], bool] | None = None) -> Attempt:
    """Print what happens until the attempt is over, or `until` says so. Raises DemoError if it failed."""
    seen, line, silent_since = 0, "", 0.0
    while True:
        try:
            attempt = Attempt.objects.select_related("run").get(pk=attempt.pk)
            for event in attempt.events.filter(pk__gt=seen).exclude(kind="phase").order_by("pk"):
                seen = event.pk
                say(event.text)
            silent_since = 0.0
        except OperationalError as error:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > DATABASE_PATIENCE_S:
                raise DemoError(f"The database has not answered for {DATABASE_PATIENCE_S:g} s. {error}") from error
        if (now := describe(attempt)) != line:
            say(now)
            line = now
        if attempt.is_over or (until and until(attempt)):
            break
        connection.close()
        time.sleep(LOOK_S)
    if attempt.state == Attempt.State.FAILED:
        raise DemoError(f"The run failed. {attempt.state_reason}")
    return attempt


def describe(attempt: Attempt) -> str:
    progress = attempt.phase_progress
    if "total" not in progress:
        return attempt.phase
    tenth = 10 * int(progress["done"]) // max(1, int(progress["total"]))
    return f"{attempt.phase}: {tenth * 10} % of {progress['total']} {progress['unit']}"


# What came of it.


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same tasks before and after."""

    before: float
    after: float
    n: int
    interval: tuple[float, float] = field(default=(0.0, 0.0))
    """95 %, of after - before, paired by task."""


def compare(first: Version, last: Version) -> Comparison:
    before, after = heldout_rewards(first), heldout_rewards(last)
    tasks = sorted(before.keys() & after.keys())
    if not tasks:
        raise DemoError("No held-out task was scored both before and after.")
    solved = [(float(before[task] >= 1.0), float(after[task] >= 1.0)) for task in tasks]
    return Comparison(
        before=sum(pair[0] for pair in solved) / len(solved),
        after=sum(pair[1] for pair in solved) / len(solved),
        n=len(solved),
        interval=paired_interval([after - before for before, after in solved]),
    )


def paired_interval(differences: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean difference, resampling tasks."""
    chance = random.Random(seed)
    n = len(differences)
    means = sorted(sum(chance.choices(differences, k=n)) / n for _ in range(NUM_RESAMPLES))
    return means[int(0.025 * NUM_RESAMPLES)], means[int(0.975 * NUM_RESAMPLES) - 1]


def seconds_by_phase(attempt: Attempt) -> dict[str, float]:
    """From the attempt's phase events; a phase that came several times is summed."""
    events = list(attempt.events.filter(kind="phase").order_by("pk").values_list("at", "data__phase"))
    ends = [at for at, _ in events[1:]] + [attempt.ended_at or events[-1][0]] if events else []
    seconds: dict[str, float] = {}
    for (at, phase), end in zip(events, ends, strict=True):
        seconds[phase] = seconds.get(phase, 0.0) + max(0.0, (end - at).total_seconds())
    return {phase: round(value, 1) for phase, value in seconds.items()}


def build_report(attempt: Attempt) -> dict[str, Any]:
    """Raw figures, from rows alone."""
    versions = list(attempt.versions.order_by("number"))
    compared = compare(versions[0], versions[-1])
    peak = attempt.metrics.filter(key="peak_memory_bytes").order_by("-value").values_list("value", flat=True).first()
    begin, end = attempt.started_at or attempt.created_at, attempt.ended_at or attempt.created_at
    return {
        "name": "demo",
        "run": attempt.run.name,
        "seed": attempt.config["seed"],
        "heldout_before": round(compared.before, 4),
        "heldout_after": round(compared.after, 4),
        "gain": round(compared.after - compared.before, 4),
        "n": compared.n,
        "interval": [round(bound, 4) for bound in compared.interval],
        "steps": attempt.step,
        "seconds": round((end - begin).total_seconds(), 1),
        "seconds_by_phase": seconds_by_phase(attempt),
        "peak_trainer_bytes": int(peak) if peak is not None else None,
        "curve": build_curve(attempt),
        "heldout_by_family": {"before": by_family(versions[0]), "after": by_family(versions[-1])},
    }


def build_curve(attempt: Attempt) -> list[dict[str, float]]:
    """Mean reward of the training rollouts, step by step."""
    values = Metric.objects.filter(attempt=attempt, kind="policy", key="reward_mean").order_by("step")
    return [{"step": step, "reward_mean": round(value, 4)} for step, value in values.values_list("step", "value")]


def by_family(version: Version) -> dict[str, str]:
    """Family to "solved/tasks"."""
    rewards = heldout_rewards(version)
    families = {str(pk): family for pk, family in Task.objects.filter(id__in=rewards).values_list("id", "family")}
    counts: dict[str, tuple[int, int]] = {}
    for task, reward in rewards.items():
        solved, total = counts.get(families[task], (0, 0))
        counts[families[task]] = (solved + (reward >= 1.0), total + 1)
    return {family: f"{solved}/{total}" for family, (solved, total) in sorted(counts.items())}


def supervised_config(attempt: Attempt) -> RunConfig:
    """More of the warm start instead: as many demonstrations as warm start and online phase had time for together."""
    seconds = seconds_by_phase(attempt)
    warm = max(1.0, seconds.get("warm_start", 0.0))
    online = sum(seconds.get(phase, 0.0) for phase in ("generation", "training", "publication", "turning"))
    wanted = attempt.config["warm_start"]["demonstrations"] * (warm + online) / warm
    names = [part["taskset"] for part in attempt.config["tasks"]["mixture"]]
    tasks = Task.objects.filter(taskset__name__in=names, split=Task.Split.TRAIN).count()
    demonstrations = min(int(wanted), tasks)
    warm_start = {**attempt.config["warm_start"], "demonstrations": demonstrations, "epochs": wanted / demonstrations}
    return RunConfig.model_validate({**attempt.config, "warm_start": warm_start})


def run_supervised(attempt: Attempt, say: Say) -> dict[str, Any]:
    """What the same wall time of further supervised training gives, on the same held-out tasks."""
    config = supervised_config(attempt)
    say(f"for comparison: {config.warm_start.demonstrations} demonstrations, {config.warm_start.epochs:.2f} epochs")
    run = start_demo(seed=config.seed, say=say, config=config, name=f"{attempt.run.name}-supervised")
    other = follow(run.attempts.get(), say, until=is_first_evaluated)
    if not other.is_over:
        request(other.id, Attempt.Wanted.CANCEL)
        follow(other, say)
    compared = compare(attempt.versions.order_by("number")[0], other.versions.get(number=0))
    return {
        "run": run.name,
        "demonstrations": config.warm_start.demonstrations,
        "epochs": round(config.warm_start.epochs, 2),
        "heldout": round(compared.after, 4),
        "n": compared.n,
        "seconds_by_phase": seconds_by_phase(Attempt.objects.get(pk=other.pk)),
    }


def is_first_evaluated(attempt: Attempt) -> bool:
    first = attempt.versions.filter(number=0).first()
    return first is not None and first.evaluation.get("heldout", {}).get("state") == "done"
