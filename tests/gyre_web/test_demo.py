"""What the demo reports is computed from rows as said."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from environments.models import Harness, Model, Rollout, Task
from gyre_web.up import demo
from gyre_web.up.demo import (
    build_config,
    build_report,
    compare,
    free_name,
    paired_interval,
    seconds_by_phase,
    supervised_config,
)
from tests.training.factories import make_catalog, make_config
from training.models import Attempt, Metric, RunEvent, Version
from training.services import start_run


@pytest.fixture
def attempt(db, tmp_path) -> Attempt:
    make_catalog(tmp_path)
    config = make_config(warm_start={"demonstrations": 10}, evaluation={"tasks": 8}, optimization={"steps": 2})
    return start_run(name="demo-1", config=config)


def evaluate(attempt: Attempt, number: int, rewards: Sequence[float | None]) -> Version:
    rollouts = {}
    for task, reward in zip(Task.objects.filter(split="heldout").order_by("name"), rewards, strict=False):
        rollout = Rollout.objects.create(
            task=task, model=Model.objects.get(), harness=Harness.objects.get(), pool=attempt.pool, state="ended",
            outcome="completed" if reward is not None else "verifier_error", reward=reward,
        )  # fmt: skip
        rollouts[str(task.id)] = [str(rollout.id)]
    evaluation = {"heldout": {"state": "done", "tasks": list(rollouts), "rollouts": rollouts}}
    return Version.objects.create(attempt=attempt, number=number, evaluation=evaluation)


def note(attempt: Attempt, phase: str, at_s: float) -> None:
    event = RunEvent.objects.create(attempt=attempt, kind="phase", text=phase, data={"phase": phase})
    RunEvent.objects.filter(pk=event.pk).update(at=attempt.created_at + timedelta(seconds=at_s))


def test_only_tasks_scored_both_before_and_after_are_compared(attempt):
    first = evaluate(attempt, 0, [0.0, 0.0, 1.0, None, 1.0])
    last = evaluate(attempt, 1, [1.0, 0.0, 1.0, 1.0, 0.5])
    compared = compare(first, last)
    assert (compared.before, compared.after, compared.n) == (0.5, 0.5, 4)  # 0.5 is not solved


def test_the_paired_interval_is_that_of_the_mean_difference():
    low, high = paired_interval([1.0] * 30 + [0.0] * 60 + [-1.0] * 10)
    # mean 0.2, standard deviation 0.6: 0.2 +- 1.96 * 0.06
    assert low == pytest.approx(0.08, abs=0.02)
    assert high == pytest.approx(0.32, abs=0.02)
    assert paired_interval([1.0] * 5) == (1.0, 1.0)


def test_seconds_by_phase_are_summed_over_its_stretches(attempt):
    for phase, at_s in (("warm_start", 0), ("generation", 100), ("training", 130), ("generation", 150)):
        note(attempt, phase, at_s)
    attempt.ended_at = attempt.created_at + timedelta(seconds=160)
    assert seconds_by_phase(attempt) == {"warm_start": 100.0, "generation": 40.0, "training": 20.0}


def test_the_same_time_of_supervised_training_means_so_many_more_demonstrations(attempt):
    for phase, at_s in (("warm_start", 0), ("generation", 100), ("training", 150), ("completed", 300)):
        note(attempt, phase, at_s)
    warm = supervised_config(attempt).warm_start
    assert (warm.demonstrations, warm.epochs) == (24, 30 / 24)  # 10 * (100 + 200) / 100 = 30; there are 24 tasks


def test_the_report_has_the_figures_that_were_asked_for(attempt):
    evaluate(attempt, 0, [0.0] * 8)
    evaluate(attempt, 2, [1.0] * 4 + [0.0] * 4)
    for step, value in ((1, 0.2), (2, 0.5)):
        Metric.objects.create(attempt=attempt, step=step, key="reward_mean", value=value)
        Metric.objects.create(attempt=attempt, step=step, key="peak_memory_bytes", value=5e9 + step)
    attempt.started_at, attempt.ended_at, attempt.step = attempt.created_at, timezone.now(), 2
    report = build_report(attempt)
    assert (report["heldout_before"], report["heldout_after"], report["n"]) == (0.0, 0.5, 8)
    assert report["interval"][0] > 0
    assert report["peak_trainer_bytes"] == 5_000_000_002
    assert report["curve"] == [{"step": 1, "reward_mean": 0.2}, {"step": 2, "reward_mean": 0.5}]
    assert report["heldout_by_family"]["before"]["family-0"].startswith("0/")


def test_a_name_that_is_taken_gets_a_number(attempt):
    assert free_name("demo-1") == "demo-1-2"
    assert free_name("demo-2") == "demo-2"


def test_the_recipe_keeps_to_at_most_210_demonstrations_and_at_least_100_held_out_tasks():
    config = build_config(seed=3, steps=4)
    assert config.warm_start.demonstrations <= 210
    assert config.evaluation.tasks >= 100
    assert (config.seed, config.optimization.steps) == (3, 4)


def test_a_database_that_is_restarted_is_waited_for_and_one_that_stays_away_is_said(attempt, monkeypatch):
    Attempt.objects.filter(pk=attempt.pk).update(state=Attempt.State.COMPLETED)
    look, refusals = Attempt.objects.select_related, []

    def refuse(*names: str):
        if len(refusals) < 2:
            refusals.append(names)
            raise OperationalError("the connection was closed")
        return look(*names)

    monkeypatch.setattr(demo, "LOOK_S", 0.0)
    monkeypatch.setattr(demo.connection, "close", lambda: None)
    monkeypatch.setattr(Attempt.objects, "select_related", refuse)
    assert demo.follow(attempt, lambda text: None).state == Attempt.State.COMPLETED
    assert len(refusals) == 2

    refusals.clear()
    monkeypatch.setattr(demo, "DATABASE_PATIENCE_S", 0.0)
    with pytest.raises(demo.DemoError, match="has not answered"):
        demo.follow(attempt, lambda text: None)
