"""One cell's supervisor with real processes: a scripted engine, and a stand-in for the trainer."""

import sys
import threading
import time
from pathlib import Path

import numpy
import psutil
import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from safetensors.numpy import save_file

from environments.models import Engine
from tests.training.factories import make_catalog, make_config
from training import cell_lease, cells, services, trainer_start
from training.engines import attach_engine
from training.models import Attempt, Cell, RunEvent, Version
from training.trainer_start import find_trainer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def cell(tmp_path, monkeypatch):
    make_catalog(tmp_path)
    attempt = services.start_run(name="run", config=make_config(engine={"kind": "scripted"}))
    cell = Cell.objects.create(attempt=attempt, index=0, wanted_role="trains")

    def sleeper(cell_id):
        return [sys.executable, "-c", "import time; time.sleep(600)", "trainer", "--cell", str(cell_id)]

    monkeypatch.setattr(trainer_start, "trainer_command", sleeper)
    yield cell
    for line in cells.end_detached():
        raise AssertionError(f"left behind: {line}")


@pytest.fixture
def job(cell):
    """A worker's thread on the cell; `job.kill()` leaves as kill -9 would: nothing is given back."""
    jobs = []

    def start() -> Job:
        jobs.append(Job(cell))
        return jobs[-1]

    yield start
    Cell.objects.update(wanted_role="down")
    for running in jobs:
        running.thread.join(20)


class Job:
    def __init__(self, cell: Cell) -> None:
        self.cell_id = cell.id
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        cells.supervise(self.cell_id, owner="test", stop=self.stop)
        connection.close()

    def kill(self) -> None:
        """The lease is somebody else's from now on, so that it touches nothing any more."""
        Cell.objects.filter(pk=self.cell_id).update(lease_owner="nobody", lease_expires_at=timezone.now())
        self.thread.join(20)
        assert not self.thread.is_alive()


def wait(reached, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, str(
            [
                *Cell.objects.values("role", "wanted_role", "reason"),
                *Engine.objects.values("state", "state_reason"),
                *RunEvent.objects.values("text"),
            ]
        )
        time.sleep(0.05)


def has_role(cell: Cell, role: str):
    return lambda: Cell.objects.filter(pk=cell.pk, role=role).exists()


def order(cell: Cell, role: str) -> None:
    Cell.objects.filter(pk=cell.pk).update(wanted_role=role)
    wait(has_role(cell, role))


def make_version(cell: Cell, tmp_path: Path, number: int) -> Version:
    directory = tmp_path / f"v{number}"
    directory.mkdir()
    save_file({"lm_head.weight": numpy.full((2, 2), number, dtype=numpy.float32)}, directory / "model.safetensors")
    return Version.objects.create(attempt=cell.attempt, number=number, path=str(directory), step=number)


def test_a_cell_trains_serves_publishes_and_gives_everything_back(cell, job, tmp_path):
    running = job()
    wait(has_role(cell, "trains"))
    trainer = find_trainer(cell.id, tmp_path)
    assert trainer
    first = make_version(cell, tmp_path, 0)
    order(cell, "serves")
    first.refresh_from_db()
    assert first.published_at
    engine = Engine.objects.get(state="serving")
    attached = attach_engine(engine)
    assert attached
    order(cell, "trains")
    engine.refresh_from_db()
    assert engine.state == "holding"
    second = make_version(cell, tmp_path, 1)
    order(cell, "serves")
    second.refresh_from_db()
    engine.refresh_from_db()
    assert (engine.state, engine.version) == ("serving", 1)
    assert second.publish_s is not None
    order(cell, "down")
    running.thread.join(20)
    assert not psutil.pid_exists(trainer.pid)
    assert not attached.alive()
    cell.refresh_from_db()
    assert [role for _, role in cell.history] == [
        "turning", "trains", "turning", "serves", "turning", "trains", "turning", "serves", "down",
    ]  # fmt: skip
    assert cell.lease_owner == ""


def test_after_its_worker_was_killed_another_goes_on_with_the_same_processes(cell, job, tmp_path):
    first = job()
    make_version(cell, tmp_path, 0)
    wait(has_role(cell, "trains"))
    order(cell, "serves")
    engine, trainer = Engine.objects.get(state="serving"), find_trainer(cell.id, tmp_path)
    first.kill()
    Cell.objects.update(lease_owner="")
    job()
    wait(lambda: cell.attempt.events.filter(kind="cell_attached").exists())
    order(cell, "trains")
    order(cell, "serves")
    assert Engine.objects.get(state="serving") == engine
    assert find_trainer(cell.id, tmp_path) == trainer


def test_a_second_job_goes_home_while_the_first_holds_the_cell(cell, job):
    job()
    wait(has_role(cell, "trains"))
    second = job()
    second.thread.join(10)
    assert not second.thread.is_alive()


def test_an_engine_and_a_trainer_that_die_are_started_again(cell, job, tmp_path):
    job()
    make_version(cell, tmp_path, 0)
    wait(has_role(cell, "trains"))
    order(cell, "serves")
    engine, trainer = Engine.objects.get(state="serving"), find_trainer(cell.id, tmp_path)
    assert trainer
    attached = attach_engine(engine)
    assert attached
    psutil.Process(trainer.pid).kill()
    psutil.Process(attached.pid).kill()
    wait(lambda: Engine.objects.filter(state="serving").exclude(pk=engine.pk).exists())
    wait(lambda: (found := find_trainer(cell.id, tmp_path)) is not None and found.pid != trainer.pid)
    kinds = set(cell.attempt.events.values_list("kind", flat=True))
    assert {"engine_lost", "trainer_lost"} <= kinds


def test_a_worker_that_ends_gives_everything_back_and_the_next_starts_anew(cell, job, tmp_path):
    first = job()
    wait(has_role(cell, "trains"))
    trainer = find_trainer(cell.id, tmp_path)
    assert trainer
    first.stop.set()
    first.thread.join(20)
    assert not psutil.pid_exists(trainer.pid)
    job()
    wait(has_role(cell, "trains"))


def test_a_worker_that_ends_while_the_database_is_away_leaves_no_process_behind(cell, job, monkeypatch, tmp_path):
    def away(supervisor):
        raise OperationalError("the database is away")

    running = job()
    wait(has_role(cell, "trains"))
    trainer = find_trainer(cell.id, tmp_path)
    assert trainer
    monkeypatch.setattr(cells, "RETRY_S", 0.05)
    monkeypatch.setattr(cells, "PATIENCE_S", 0.1)
    monkeypatch.setattr(cells.Supervisor, "_load", away)
    running.stop.set()
    running.thread.join(20)
    assert not running.thread.is_alive()
    assert not psutil.pid_exists(trainer.pid)


def test_a_trainer_that_fails_again_and_again_makes_the_cell_give_up_with_a_reason(cell, job, monkeypatch):
    def failing(cell_id):
        return [sys.executable, "-c", "raise ValueError('no such model')", "trainer", "--cell", str(cell_id)]

    monkeypatch.setattr(trainer_start, "trainer_command", failing)
    monkeypatch.setattr(cell_lease, "BACKOFF_S", (0.0,))
    job()
    wait(has_role(cell, "down"))
    cell.refresh_from_db()
    assert "ValueError: no such model" in cell.reason
    assert Attempt.objects.get().events.filter(kind="trainer_lost").count() == cells.MOST_FAILURES
