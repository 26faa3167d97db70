"""Kill any process of a running system with -9: the run goes on by itself, nothing is lost, doubled or left behind.

From:  `make drills`.
Holds: one system, a run of its own for each kill; each is killed at a moment at which it has something to lose. After
       it the run must complete without anybody's help and tests.end_to_end.audit must hold.
"""

import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.db import connection

from environments.models import Call, Rollout, Sandbox
from gyre_web.up.processes import start_time
from tests.end_to_end import audit
from tests.end_to_end.tiny import TinySystem, tiny_system
from training.models import Attempt, Cell, OptimizerStep

pytestmark = [pytest.mark.drill, pytest.mark.harness, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS_PER_S = 25.0
"""An answer of the script has 30 to 80 tokens, so a call takes seconds and can be hit."""


@pytest.fixture(scope="module")
def system(django_db_blocker) -> Iterator[TinySystem]:
    with django_db_blocker.unblock(), tiny_system(tokens_per_s=TOKENS_PER_S) as running:
        yield running


# Moments.


def calls_are_sampled(system: TinySystem, attempt: Attempt) -> None:
    """Two calls of the policy have been open for a while, so some of their tokens are there."""

    def found() -> bool:
        seen = Call.objects.filter(rollout__pool=attempt.pool, state=Call.State.OPEN, first_token_s=None)
        return seen.extra(where=["now() - environments_call.started_at > interval '0.6 s'"]).count() >= 2

    system.wait_for(found, "calls are sampled")


def a_step_is_trained(system: TinySystem, attempt: Attempt) -> None:
    training = attempt.optimizer_steps.filter(kind="policy", state=OptimizerStep.State.TRAINING)
    system.wait_for(training.exists, "a step is trained")


def demonstrations_run(system: TinySystem, attempt: Attempt) -> None:
    rows = Rollout.objects.filter(pool=f"{attempt.pool}-expert", state=Rollout.State.RUNNING)
    system.wait_for(rows.exists, "demonstrations run")


def something_is_graded(system: TinySystem, attempt: Attempt) -> None:
    rows = Sandbox.objects.filter(rollout__pool=attempt.pool, purpose=Sandbox.Purpose.VERIFIER, stopped_at=None)
    system.wait_for(rows.exists, "a verifier runs")


def the_cell_turns(system: TinySystem, attempt: Attempt) -> None:
    """To training, with the engine asleep or about to be."""
    turning = attempt.cells.filter(role=Cell.Role.TURNING, wanted_role=Cell.Role.TRAINS, attempt__state="running")
    system.wait_for(turning.exists, "the cell turns")


# Victims.


def part(name: str) -> Callable[[TinySystem, Attempt], int]:
    return lambda system, attempt: system.pid_of(name)


def of_cell(name: str) -> Callable[[TinySystem, Attempt], int]:
    return lambda system, attempt: int(Cell.objects.get(attempt=attempt).processes[name]["pid"])


def service(name: str) -> Callable[[TinySystem, Attempt], int]:
    def pid(system: TinySystem, attempt: Attempt) -> int:
        found = next(each for each in system.supervisor._services if type(each).__name__ == name)
        assert found.process
        return found.process.pid

    return pid


def emptied_valkey(system: TinySystem, attempt: Attempt) -> int:
    redis.Redis.from_url(system.supervisor.urls["REDIS_URL"]).flushall()
    return service("EmbeddedValkey")(system, attempt)


KILLS: dict[str, tuple[Callable[[TinySystem, Attempt], None], Callable[[TinySystem, Attempt], int]]] = {
    "gateway": (calls_are_sampled, part("gateway")),
    "rollouts": (calls_are_sampled, part("rollouts")),
    "rollouts-grading": (something_is_graded, part("rollouts")),
    "cells": (calls_are_sampled, part("cells")),
    "cells-turning": (the_cell_turns, part("cells")),
    "engine": (calls_are_sampled, of_cell("engine")),
    "trainer": (a_step_is_trained, of_cell("trainer")),
    "controller": (calls_are_sampled, part("controller")),
    "controller-training": (a_step_is_trained, part("controller")),
    "web": (calls_are_sampled, part("web")),
    "valkey": (calls_are_sampled, emptied_valkey),
    "valkey-warm-start": (demonstrations_run, emptied_valkey),
    "postgres": (calls_are_sampled, service("EmbeddedPostgres")),
    "postgres-training": (a_step_is_trained, service("EmbeddedPostgres")),
}


def small() -> dict[str, Any]:
    """A run as short as one can be that still has all phases but evaluation."""
    return {"warm_start": {"demonstrations": 3}, "evaluation": {"tasks": 0}}


@pytest.mark.parametrize("name", KILLS)
def test_a_run_survives_the_death_of(system, name):
    moment, victim = KILLS[name]
    attempt = system.start(**small())
    moment(system, attempt)
    pid = victim(system, attempt)
    connection.close()
    os.kill(pid, signal.SIGKILL)
    system.wait_for(lambda: start_time(pid) is None, "it is dead")
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
