"""The controller: a plain loop that leads or waits to lead, and moves every attempt on.

    consumes   Attempt.wanted (people), ended rollouts (workers), steps done (trainers), versions published (cells)
    produces   groups, members, rollouts, optimizer steps, cell orders, attempt states, events
    waits for  nothing: each round does what can be done now
    unblocked by  the next round, half a second later

Holds: it can be killed at any line and started again anywhere: what it knows is in rows, each act is one transaction
under the fence of training.scheduling.leadership, and jobs that were lost are sent again.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection
from pydantic import ValidationError

from environments import sandboxes
from environments.message_index import index_ended
from environments.rollouts import requeue_lost_rollouts
from training.config import RunConfig
from training.events import record_event
from training.models import Attempt, RunEvent
from training.scheduling.attempts import Memory, advance, end_attempt, end_what_is_over
from training.scheduling.cells import JobSender
from training.scheduling.leadership import Fenced, Leadership

log = logging.getLogger(__name__)
ROUND_S = 0.5
UPKEEP_S = 3.0
REAP_S = 15.0
RETRY_S = 2.0
ERROR_PAUSE_S = 10.0


def requeue_lost_exports() -> None:
    """Exports whose job, or whose writer, was lost."""
    from training.exports.writer import waiting_exports
    from training.jobs import write_export

    for export_id in waiting_exports():
        write_export.delay(str(export_id))


@dataclass(kw_only=True)
class Controller:
    leadership: Leadership = field(default_factory=Leadership)
    jobs: JobSender = field(default_factory=JobSender)
    memories: dict[UUID, Memory] = field(default_factory=dict)
    paused_until: dict[UUID, float] = field(default_factory=dict)
    """Attempts in which something unforeseen happened: they are tried again a little later."""
    due: dict[str, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Until `stop`. Loses nothing when Postgres or Valkey is away for a while."""
        while not stop.is_set():
            try:
                wait_s = ROUND_S if self.round() else ROUND_S * 2
            except (OperationalError, InterfaceError) as error:
                log.warning("database not reachable; trying again", extra={"error": str(error)})
                connection.close()
                wait_s = RETRY_S
            stop.wait(wait_s)
        self._resign()

    def round(self) -> bool:
        """Everything that can be done now. Returns whether this controller leads."""
        if not self.leadership.lead():
            return False
        try:
            for attempt_id in self._going():
                self._advance(attempt_id)
        except Fenced as error:
            log.warning("fenced", extra={"error": str(error)})
            return False
        end_what_is_over()
        self._upkeep("jobs", UPKEEP_S / 3, self.jobs.send_missing)
        self._upkeep("rollouts", UPKEEP_S, requeue_lost_rollouts)
        self._upkeep("messages", UPKEEP_S, index_ended)
        self._upkeep("exports", REAP_S, requeue_lost_exports)
        self._upkeep("sandboxes", REAP_S, sandboxes.reap)
        return True

    def _going(self) -> list[UUID]:
        going = Attempt.objects.filter(ended_at=None).order_by("created_at").values_list("id", flat=True)
        return list(going)

    def _advance(self, attempt_id: UUID) -> None:
        if time.monotonic() < self.paused_until.get(attempt_id, 0.0):
            return
        try:
            memory = self.memories.get(attempt_id) or self._remember(attempt_id)
            if memory:
                advance(self.leadership, attempt_id, memory)
        except (Fenced, OperationalError, InterfaceError):
            raise
        except Exception as error:
            # The boundary between attempts: what goes wrong in one stops no other.
            log.exception("attempt not advanced", extra={"attempt": str(attempt_id)})
            self.paused_until[attempt_id] = time.monotonic() + ERROR_PAUSE_S
            self._tell(attempt_id, error)

    def _remember(self, attempt_id: UUID) -> Memory | None:
        attempt = Attempt.objects.get(pk=attempt_id)
        try:
            memory = Memory(config=RunConfig.model_validate(attempt.config))
        except ValidationError as error:
            end_attempt(
                self.leadership, attempt, Attempt.State.FAILED,
                f"Its config is not one that this version of Gyre understands: {error}. Clone the run.",
            )  # fmt: skip
            return None
        return self.memories.setdefault(attempt_id, memory)

    def _tell(self, attempt_id: UUID, error: Exception) -> None:
        """Once for each different problem."""
        text = f"The controller could not go on ({type(error).__name__}: {error}). It tries again by itself."
        if not RunEvent.objects.filter(attempt_id=attempt_id, text=text).exists():
            record_event(Attempt.objects.get(pk=attempt_id), "controller_error", text, RunEvent.Level.ERROR)

    def _upkeep(self, name: str, every_s: float, work: Callable[[], object]) -> None:
        """Work for all attempts; a failure is logged and does not stop the loop."""
        if time.monotonic() < self.due.get(name, 0.0):
            return
        self.due[name] = time.monotonic() + every_s
        try:
            work()
        except (OperationalError, InterfaceError):
            raise
        except Exception:  # upkeep of the whole installation must outlive any single failure
            log.exception("upkeep failed", extra={"upkeep": name})

    def _resign(self) -> None:
        try:
            self.leadership.resign()
        except (OperationalError, InterfaceError):
            log.info("lease left to run out")
