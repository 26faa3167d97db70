"""Kill any process of a running system with -9: the run goes on by itself, nothing is lost, doubled or left behind.

From:  `make drills`.
Holds: one system, a run of its own for each kill; each is killed at a moment at which it has something to lose. After
       it the run must complete without anybody's help and tests.end_to_end.audit must hold.
"""

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from environments.models import Call, Rollout, Sandbox
from gyre_web.up.processes import start_time
from tests.end_to_end import audit
from tests.end_to_end.tiny import TinySystem, tiny_system
from training.models import Attempt, Cell, OptimizerStep

pytestmark = [pytest.mark.drill, pytest.mark.harness, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]

Moment = Callable[[TinySystem, Attempt, int], None]
Victim = Callable[[TinySystem, Attempt], int]
TOKENS_PER_S = 25.0
"""An answer of the script has 30 to 80 tokens, so a call takes seconds and can be hit."""


@pytest.fixture(scope="module")
def system(django_db_blocker) -> Iterator[TinySystem]:
    with django_db_blocker.unblock(), tiny_system(tokens_per_s=TOKENS_PER_S) as running:
        yield running


# Moments, each of a run's step number `step` (from 0). They wait.


def demonstrations_run(system: TinySystem, attempt: Attempt, step: int) -> None:
    rows = Rollout.objects.filter(pool=f"{attempt.pool}-expert", state=Rollout.State.RUNNING)
    system.wait_for(rows.exists, "demonstrations run")


def open_calls(attempt: Attempt, step: int, age_s: float) -> int:
    seen = Call.objects.filter(rollout__pool=attempt.pool, state=Call.State.OPEN, rollout__member__isnull=False)
    old = seen.filter(started_at__lt=timezone.now() - timedelta(seconds=age_s))
    return old.count() if Attempt.objects.filter(pk=attempt.pk, step=step).exists() else 0


def calls_are_sampled(system: TinySystem, attempt: Attempt, step: int) -> None:
    """Some have been open for a while, so some of their tokens are there."""
    system.wait_for(lambda: open_calls(attempt, step, 0.6) >= 2, "calls are sampled")


def calls_are_opened(system: TinySystem, attempt: Attempt, step: int) -> None:
    """Just now, so that Postgres has hardly had the time to write them to disk."""
    system.wait_for(lambda: open_calls(attempt, step, 0.0) >= 1, "calls are opened")


def a_step_is_trained(system: TinySystem, attempt: Attempt, step: int) -> None:
    """Or was, a moment ago: this model's step takes a tenth of a second, which a look may miss."""
    training = attempt.optimizer_steps.filter(number=step + 1, kind="policy").exclude(
        state=OptimizerStep.State.REQUESTED
    )
    system.wait_for(training.exists, "a step is trained")


def something_is_graded(system: TinySystem, attempt: Attempt, step: int) -> None:
    rows = Sandbox.objects.filter(rollout__pool=attempt.pool, purpose=Sandbox.Purpose.VERIFIER, stopped_at=None)
    graded = attempt.groups.filter(members__rollout__state=Rollout.State.ENDED)
    system.wait_for(
        lambda: rows.filter(rollout__member__group__attempt__step=step).exists() or graded.exists(), "a verifier runs"
    )


def the_cell_turns(system: TinySystem, attempt: Attempt, step: int) -> None:
    """To training, with the engine asleep or about to be. The turn itself takes milliseconds: its order is awaited."""
    ordered = attempt.cells.filter(wanted_role=Cell.Role.TRAINS, attempt__step=step)
    system.wait_for(ordered.filter(attempt__state=Attempt.State.RUNNING).exists, "the cell turns")


# Victims.


def part(name: str) -> Victim:
    return lambda system, attempt: system.pid_of(name)


def of_cell(name: str) -> Victim:
    return lambda system, attempt: int(Cell.objects.get(attempt=attempt).processes[name]["pid"])


def service(name: str) -> Victim:
    def pid(system: TinySystem, attempt: Attempt) -> int:
        found = next(each for each in system.supervisor._services if type(each).__name__ == name)
        assert found.process
        return found.process.pid

    return pid


def emptied_valkey(system: TinySystem, attempt: Attempt) -> int:
    redis.Redis.from_url(system.supervisor.urls["REDIS_URL"]).flushall()
    return service("EmbeddedValkey")(system, attempt)


GATEWAY, ROLLOUTS, CELLS, CONTROLLER, WEB = map(part, ("gateway", "rollouts", "cells", "controller", "web"))
ENGINE, TRAINER = of_cell("engine"), of_cell("trainer")
POSTGRES = service("EmbeddedPostgres")

RUNS: dict[str, list[tuple[Moment, int, list[Victim]]]] = {
    "gateway, trainer": [(calls_are_sampled, 0, [GATEWAY]), (a_step_is_trained, 1, [TRAINER])],
    "rollouts, controller in training": [(calls_are_sampled, 0, [ROLLOUTS]), (a_step_is_trained, 1, [CONTROLLER])],
    "rollouts in grading, cells in turning": [(something_is_graded, 0, [ROLLOUTS]), (the_cell_turns, 1, [CELLS])],
    "cells, web": [(calls_are_sampled, 0, [CELLS]), (calls_are_sampled, 1, [WEB])],
    "engine, postgres in training": [(calls_are_sampled, 0, [ENGINE]), (a_step_is_trained, 1, [POSTGRES])],
    "valkey in warm start, postgres, valkey": [
        (demonstrations_run, 0, [emptied_valkey]),
        (calls_are_sampled, 0, [POSTGRES]),
        (calls_are_sampled, 1, [emptied_valkey]),
    ],
    "controller, gateway with engine": [
        (calls_are_sampled, 0, [CONTROLLER]),
        (calls_are_sampled, 1, [GATEWAY, ENGINE]),
    ],
    "every part at once, postgres at an opening": [
        (calls_are_sampled, 0, [GATEWAY, ROLLOUTS, CELLS, CONTROLLER, WEB]),
        (calls_are_opened, 1, [POSTGRES]),
    ],
}


def small() -> dict[str, Any]:
    """A run as short as one can be that still has all phases but evaluation."""
    return {"warm_start": {"demonstrations": 3}, "evaluation": {"tasks": 0}}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_survives_the_death_of(system, name):
    attempt = system.start(**small())
    for moment, step, victims in RUNS[name]:
        moment(system, attempt, step)
        pids = [victim(system, attempt) for victim in victims]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        system.wait_for(lambda: not any(map(start_time, pids)), "they are dead")  # noqa: B023 -- waited for here
    audit.check_everything(system, system.wait_until_over(attempt))
    audit.check_nothing_is_left(system, attempt)
    system.wait_for(lambda: all_parts_run(system), "every part runs again", 60.0)


def all_parts_run(system: TinySystem) -> bool:
    """Also those that nobody needed since: the web server answers."""
    dead = [item for item in system.supervisor.running.values() if item.process.poll() is not None]
    try:
        with urllib.request.urlopen(system.supervisor.address, timeout=5) as answer:
            return answer.status == 200 and not dead
    except OSError:
        return False
