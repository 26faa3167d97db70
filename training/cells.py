"""Supervise one cell: its engine process and its trainer process, doing what the controller wants of it.

From:  training.jobs.supervise_cell (Celery); orders in Cell.wanted_role; new Versions of the trainer.
To:    processes, Cell.role and history, Version.published_at, RunEvents.
Holds: one supervisor a cell (lease); every write compares the lease, so one that was taken for dead changes nothing.
       It may be killed at any line: engine and trainer live on, and the next one attaches to them or replaces them.
       While a cell trains its engine stands still; while it serves its trainer waits.
Never: decides what a cell does.

    wanted trains   engine sleeps, trainer runs
    wanted serves   newest version with weights is published (or the engine starts with it), engine runs
    wanted down     everything is given back, and the job ends; the same when this worker ends
"""

import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone

from environments.models import Engine, Model
from training.cell_lease import Failures, LeaseLost, renewed_lease, take_lease
from training.config import RunConfig
from training.engines import EngineError, RunningEngine, attach_engine, start_engine
from training.events import record_event, ring
from training.models import Cell, RunEvent, Version
from training.trainer_start import TrainerProcess, find_trainer, start_trainer

log = logging.getLogger(__name__)
LOOK_S = 0.3
POLL_S = 2.0
RETRY_S = 2.0
PATIENCE_S = 10.0
"""How long a worker that shall end waits for a database that is away."""
MOST_FAILURES = 5
"""In a row, of one kind of process: then the cell gives up with the reason."""


class GaveUp(Exception):
    """The cell cannot do what it is told; the message is for people."""


def attempt_directory(attempt_id: UUID) -> Path:
    return Path(settings.DATA_DIR) / "attempts" / str(attempt_id)


def supervise(cell_id: UUID, *, owner: str, stop: threading.Event) -> None:
    """Until the cell is wanted down, this worker ends, or another supervisor takes over. Returns at once where
    somebody holds the cell."""
    holder = f"{owner}:{secrets.token_hex(3)}"[:100]
    if not take_lease(cell_id, holder):
        connection.close()
        return
    try:
        with renewed_lease(cell_id, holder):
            Supervisor(cell_id, holder, stop).run()
    except LeaseLost:
        log.warning("cell was taken over", extra={"cell": str(cell_id)})
    finally:
        connection.close()


@dataclass
class Supervisor:
    cell_id: UUID
    holder: str
    stop: threading.Event
    engine: RunningEngine | None = field(default=None, init=False)
    trainer: TrainerProcess | None = field(default=None, init=False)
    engine_failures: Failures = field(default_factory=Failures, init=False)
    trainer_failures: Failures = field(default_factory=Failures, init=False)
    polled: float = field(default=0.0, init=False)
    stopping_since: float = field(default=0.0, init=False)

    def run(self) -> None:
        self._load()
        self._attach()
        while True:
            try:
                self._load()
                if self.stop.is_set() or self.cell.wanted_role == Cell.Role.DOWN:
                    self._give_back()
                    return
                self._round()
            except (OperationalError, InterfaceError) as error:
                log.warning("database not reachable; trying again", extra={"error": str(error)})
                connection.close()
                time.sleep(RETRY_S)
                if self._is_hopeless():
                    self._end_processes()
                    return
            except GaveUp as error:
                self._give_up(str(error))
                return
            connection.close()
            self.stop.wait(LOOK_S)

    # ---- rows

    def _load(self) -> None:
        self.cell = Cell.objects.select_related("attempt", "engine").get(pk=self.cell_id)
        if self.cell.lease_owner != self.holder:
            raise LeaseLost
        self.attempt = self.cell.attempt
        self.config = RunConfig.model_validate(self.attempt.config)

    def _set(self, **fields: Any) -> None:
        if not Cell.objects.filter(pk=self.cell_id, lease_owner=self.holder).update(**fields):
            raise LeaseLost
        for name, value in fields.items():
            setattr(self.cell, name, value)

    def _set_role(self, role: Cell.Role, reason: str = "") -> None:
        if (self.cell.role, self.cell.reason) == (role, reason):
            return
        now = timezone.now()
        history = [*self.cell.history, [now.isoformat(), str(role)]]
        self._set(role=role, reason=reason, role_since=now, history=history)
        ring(self.attempt.id)

    def _note(self, kind: str, text: str, level: RunEvent.Level = RunEvent.Level.INFO, **data: Any) -> None:
        record_event(self.attempt, kind, text, level, cell=self.cell.index, **data)

    @property
    def directory(self) -> Path:
        return attempt_directory(self.attempt.id)

    @property
    def engine_name(self) -> str:
        return f"cell-{self.cell.index}"

    # ---- one look

    def _attach(self) -> None:
        """What an earlier supervisor left: kept if it lives and is the cell's, else ended."""
        self.trainer = find_trainer(self.cell_id, self.directory)
        rows = Engine.objects.filter(pool=self.attempt.pool, name=self.engine_name)
        for row in rows.exclude(state__in=(Engine.State.STOPPED, Engine.State.FAILED)):
            found = attach_engine(row)
            ready = found and row.pk == self.cell.engine_id and row.state != Engine.State.STARTING
            if found and ready:
                self.engine = found
            elif found:
                found.stop()
            else:
                Engine.objects.filter(pk=row.pk).update(
                    state=Engine.State.FAILED, state_reason="The engine process was lost."
                )
        if self.trainer or self.engine:
            kept = " and ".join(word for word, it in (("engine", self.engine), ("trainer", self.trainer)) if it)
            self._note("cell_attached", f"Cell {self.cell.index} is supervised again; its {kept} had gone on.")

    def _round(self) -> None:
        self._watch_engine()
        self._watch_trainer()
        match self.cell.wanted_role:
            case Cell.Role.TRAINS:
                self._train()
            case Cell.Role.SERVES:
                self._serve()
            case _:
                self._sleep_engine()
                self._set_role(Cell.Role.IDLE)

    def _watch_engine(self) -> None:
        if self.engine is None or time.monotonic() - self.polled < POLL_S:
            return
        self.polled = time.monotonic()
        if self.engine.poll() is None and not self.engine.alive():
            self._lost_engine(self.engine.row.state_reason or "The engine process ended.")

    def _lost_engine(self, reason: str) -> None:
        self.engine = None
        self.engine_failures.note_end()
        self._note("engine_lost", f"The engine of cell {self.cell.index} was lost: {reason}", RunEvent.Level.WARNING)
        if self.engine_failures.count >= MOST_FAILURES:
            raise GaveUp(f"Its engine failed {self.engine_failures.count} times in a row. {reason}")

    def _watch_trainer(self) -> None:
        if self.trainer is None or self.trainer.alive():
            return
        code = self.trainer.exit_code()
        reason = self.trainer.explain()
        self.trainer = None
        if code == 0:
            self._note("trainer_restarts", f"The trainer of cell {self.cell.index} ended by itself and is renewed.")
            return
        self.trainer_failures.note_end()
        self._note("trainer_lost", f"The trainer of cell {self.cell.index} was lost. {reason}", RunEvent.Level.WARNING)
        if self.trainer_failures.count >= MOST_FAILURES:
            raise GaveUp(f"Its trainer failed {self.trainer_failures.count} times in a row. {reason}")

    # ---- roles

    def _train(self) -> None:
        if self.cell.role != Cell.Role.TRAINS:
            self._set_role(Cell.Role.TURNING)
            self._sleep_engine()
        if self._ensure_trainer():
            self._set_role(Cell.Role.TRAINS)

    def _ensure_trainer(self) -> bool:
        if self.trainer is not None:
            return True
        if not self.cell.is_core or self.trainer_failures.must_wait:
            return False
        self.trainer = start_trainer(self.cell_id, self.directory)
        self.trainer_failures.note_start()
        self._note_process("trainer", self.trainer.pid, self.trainer.started)
        self._note("trainer_started", f"The trainer of cell {self.cell.index} was started.", pid=self.trainer.pid)
        return True

    def _note_process(self, name: str, pid: int, started: float) -> None:
        self._set(processes={**self.cell.processes, name: {"pid": pid, "started": started}})

    def _sleep_engine(self) -> None:
        if self.engine is None or self.engine.state.asleep:
            return
        try:
            self.engine.sleep()
        except EngineError as error:
            self._end_engine(str(error))

    def _end_engine(self, reason: str) -> None:
        """An engine that does not do what it is told is replaced."""
        if self.engine is not None:
            self.engine.stop()
        self._lost_engine(reason)

    def _serve(self) -> None:
        version = self._newest_version()
        if version is None:
            return
        if self.engine is None and self.engine_failures.must_wait:
            return
        published = version.published_at is not None
        if self.cell.role == Cell.Role.SERVES and self.engine is not None and published:
            self._ensure_trainer_again()
            return
        if self.cell.role != Cell.Role.SERVES or self.engine is None:
            self._set_role(Cell.Role.TURNING)
        try:
            seconds = self._bring_up(version)
        except EngineError as error:
            self._after_engine_error(error)
            return
        if self.engine is None:
            return
        if not published:
            self._publish_rows(version, seconds)
        self._set_role(Cell.Role.SERVES)

    def _ensure_trainer_again(self) -> None:
        """A trainer that died while its cell serves loads its model again meanwhile."""
        if self.trainer is None and self.trainer_failures.started:
            self._ensure_trainer()

    def _newest_version(self) -> Version | None:
        return Version.objects.filter(attempt=self.attempt).exclude(path="").order_by("-number").first()

    def _bring_up(self, version: Version) -> float:
        """The engine runs and has this version. Returns the seconds that its weights took."""
        if self.engine is None:
            began = time.monotonic()
            self._start_engine(version)
            return time.monotonic() - began
        if self.engine.row.version != version.number:
            return self.engine.publish(Path(version.path), version.number, self.config.schedule.cache_policy)
        if self.engine.state.asleep:
            self.engine.wake()
        return 0.0

    def _start_engine(self, version: Version) -> None:
        """In a thread of its own, so that an order to go down, or this worker's end, is heard meanwhile."""
        started: list[RunningEngine] = []
        failed: list[EngineError] = []
        self.engine_failures.note_start()

        def start() -> None:
            try:
                engine = start_engine(
                    pool=self.attempt.pool,
                    name=self.engine_name,
                    model=Model.objects.get(name=self.config.model.name),
                    weights_path=Path(version.path),
                    version=version.number,
                    config=self.config.engine,
                    directory=self.directory,
                    cores=None,
                )
                started.append(engine)
            except EngineError as error:
                failed.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=start, name=f"engine-{self.cell_id}")
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_S)
            if self._is_over():
                self._abort_start()
                thread.join()
        if started:
            self.engine = started[0]
            Engine.objects.filter(pk=self.engine.row.pk).update(cache_policy=self.config.schedule.cache_policy)
            self._set(engine=self.engine.row)
            pid = self.engine.pid
            self._note_process("engine", pid, self.engine.state.started)
            self._note(
                "engine_started", f"The engine of cell {self.cell.index} serves version {version.number}.", pid=pid
            )
        elif failed and not self._is_over():
            raise failed[0]

    def _is_over(self) -> bool:
        over = Cell.objects.filter(pk=self.cell_id, wanted_role=Cell.Role.DOWN).exists()
        return self.stop.is_set() or over

    def _abort_start(self) -> None:
        for row in Engine.objects.filter(pool=self.attempt.pool, name=self.engine_name, state=Engine.State.STARTING):
            if found := attach_engine(row):
                found.stop()

    def _after_engine_error(self, error: EngineError) -> None:
        if self.engine is not None and self.engine.alive():
            self.engine_failures.note_end()
            self._note("publish_failed", f"Publishing failed and is tried again: {error}", RunEvent.Level.WARNING)
            if self.engine_failures.count < MOST_FAILURES:
                return
        self._end_engine(str(error))

    def _publish_rows(self, version: Version, seconds: float) -> None:
        """Versions that were overtaken before anyone served them count as published with it."""
        now = timezone.now()
        waiting = Version.objects.filter(attempt=self.attempt, published_at=None, number__lte=version.number)
        waiting.exclude(pk=version.pk).update(published_at=now)
        Version.objects.filter(pk=version.pk).update(published_at=now, publish_s=seconds)
        ring(self.attempt.id)

    # ---- the end

    def _is_hopeless(self) -> bool:
        """This worker was told to end a while ago and the database is still away: it has nobody to tell."""
        if not self.stop.is_set():
            return False
        self.stopping_since = self.stopping_since or time.monotonic()
        return time.monotonic() - self.stopping_since > PATIENCE_S

    def _end_processes(self) -> None:
        """Without a word in the rows: whoever takes the cell over finds that they are gone."""
        if self.trainer is not None:
            self.trainer.stop()
        if self.engine is not None:
            self.engine.end_process()

    def _give_back(self) -> None:
        if self.trainer is not None:
            self.trainer.stop()
        if self.engine is not None:
            self.engine.stop()
        self.trainer = self.engine = None
        self._set(processes={}, engine=None)
        if self.cell.wanted_role == Cell.Role.DOWN:
            self._set_role(Cell.Role.DOWN)
        else:
            self._set_role(Cell.Role.IDLE, "its worker ended; another takes it over")

    def _give_up(self, reason: str) -> None:
        log.error("cell gave up", extra={"cell": str(self.cell_id), "reason": reason})
        self._give_back()
        self._set_role(Cell.Role.DOWN, reason)


def end_detached() -> Iterator[str]:
    """End engines and trainers on this host: they outlive a worker on purpose, but not Gyre itself."""
    host = socket.gethostname()
    for cell in Cell.objects.filter(host=host).exclude(role=Cell.Role.DOWN).select_related("attempt"):
        trainer = find_trainer(cell.id, attempt_directory(cell.attempt_id))
        if trainer:
            trainer.stop()
            yield f"ended the trainer of cell {cell.id}"
    for row in Engine.objects.exclude(state__in=(Engine.State.STOPPED, Engine.State.FAILED)):
        engine = attach_engine(row) if not row.base_url.startswith("expert:") else None
        if engine:
            engine.stop()
            yield f"ended engine {row.name}"
