"""Follow one running harness until it has ended, or must.

From:  environments.rollouts, with a sandbox that runs the harness (started, or found again).
To:    an End: outcome and terminal text; `output` events in the live log as they come.
Holds: looks at files of the host only, ever less often while nothing happens; the database is asked for all rollouts
       of the process at once (leases.WATCH).
Never: grades, removes the sandbox. An open model call may take as long as it likes: no read deadline, only the
       idle watchdog (no call, no output and no CPU for budgets.idle_s).
"""

import codecs
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

import redis
from asgiref.sync import async_to_sync
from django.db import connection
from django.utils import timezone

from environments import live
from environments.config import Budgets
from environments.harnesses import get_program
from environments.leases import WATCH, Lease
from environments.models import Call, Outcome, Rollout
from environments.sandboxes import Handle, Status
from environments.starting import wall_time_s
from environments.verification import Interrupted

POLL_S = (0.02, 0.25)
POLL_GROWTH = 1.3
RENEW_SANDBOX_S = 60.0
ENDING_GRACE_S = 5.0
MAX_EVENT_CHARS = 64 * 1024
MAX_OUTPUT_CHARS = 1 << 20
TIMEOUT_SLACK_S = 15.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class End:
    outcome: Outcome
    error: str = ""
    exit_code: int | None = None
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """Why the harness has to end now."""

    outcome: Outcome
    error: str


class Drive:
    def __init__(
        self,
        *,
        lease: Lease,
        stop: threading.Event,
        handle: Handle,
        rollout: Rollout,
        budgets: Budgets,
        is_resumed: bool,
    ) -> None:
        self.lease = lease
        self.stop = stop
        self.handle = handle
        self.rollout = rollout
        self.budgets = budgets
        self.output = _Output(handle, rollout, resume=is_resumed)
        self.pause_s = POLL_S[0]
        self.cpu_s = 0.0
        self.active_at = time.monotonic()
        self.renewed_at = time.monotonic()
        self.ending_since: float | None = None

    def run(self) -> End:
        """Raises Interrupted (stop was set) and LeaseLost; both leave the sandbox running."""
        while True:
            status = self.handle.status()
            moved = self.output.forward()
            if not status.running:
                return self._ended_by_itself(status)
            verdict = self._look(status, moved)
            if verdict is not None:
                return self._end_it(verdict)
            self.pause_s = POLL_S[0] if moved else min(self.pause_s * POLL_GROWTH, POLL_S[1])
            if self.stop.wait(self.pause_s):
                raise Interrupted

    def _look(self, status: Status, moved: bool) -> _Verdict | None:
        """Whether somebody, or some clock, wants it to end."""
        now = time.monotonic()
        seen = WATCH.look(self.lease)
        if now - self.renewed_at > RENEW_SANDBOX_S:
            self.handle.renew()
            connection.close()
            self.renewed_at = now
        if seen.cancel_requested:
            return _Verdict(outcome=Outcome.CANCELLED, error="")
        if seen.ending:
            self.ending_since = self.ending_since or now
            if now - self.ending_since > ENDING_GRACE_S:
                return _Verdict(outcome=Outcome(seen.ending), error="")
        return self._check_clocks() or self._check_idle(status, moved, seen.last_activity_at, now)

    def _check_clocks(self) -> _Verdict | None:
        now, rollout = timezone.now(), self.rollout
        overall_s = (now - rollout.started_at).total_seconds() if rollout.started_at else 0.0
        if overall_s > self.budgets.overall_time_s:
            error = f"Not ended within overall_time_s = {self.budgets.overall_time_s:g} s."
            return _Verdict(outcome=Outcome.OVERALL_TIMEOUT, error=error)
        wall_s = (now - self.handle.row.created_at).total_seconds()
        if wall_s > wall_time_s(rollout.task, self.budgets) + TIMEOUT_SLACK_S:  # the sandbox should have ended it
            return _Verdict(outcome=Outcome.HARNESS_TIMEOUT, error="")
        return None

    def _check_idle(self, status: Status, moved: bool, activity: Any, now: float) -> _Verdict | None:
        if moved or status.cpu_s > self.cpu_s + 0.05:
            self.cpu_s = status.cpu_s
            self.active_at = now
        if activity is not None:
            age_s = (timezone.now() - activity).total_seconds()
            self.active_at = max(self.active_at, now - age_s)
        if now - self.active_at <= self.budgets.idle_s:
            return None
        has_open_call = Call.objects.filter(rollout=self.rollout, state=Call.State.OPEN).exists()
        connection.close()
        if has_open_call:
            self.active_at = now
            return None
        error = f"No model call, no output and no CPU for {self.budgets.idle_s:g} s."
        return _Verdict(outcome=Outcome.IDLE, error=error)

    def _end_it(self, verdict: _Verdict) -> End:
        self.handle.stop()
        self.output.forward()
        status = self.handle.status()
        return End(
            outcome=verdict.outcome, error=verdict.error, exit_code=status.exit_code, output=self.output.finish()
        )

    def _ended_by_itself(self, status: Status) -> End:
        self.output.forward()
        output = self.output.finish()
        outcome, error = self._read_end(status, output)
        return End(outcome=outcome, error=error, exit_code=status.exit_code, output=output)

    def _read_end(self, status: Status, output: str) -> tuple[Outcome, str]:
        """The gateway's word first (it refused further calls), then the sandbox's, then the program's own."""
        ending = Rollout.objects.values_list("ending", flat=True).get(pk=self.rollout.pk)
        if ending:
            return Outcome(ending), ""
        if status.timed_out:
            return Outcome.HARNESS_TIMEOUT, ""
        if status.limit in ("lost", "stopped"):
            return Outcome.LOST, "The sandbox was ended from outside."
        if status.limit:
            return Outcome.HARNESS_CRASH, f"The sandbox reached its limit of {status.limit}."
        ended = get_program(self.rollout.harness.program).read_end(status.exit_code, output, self.handle.logs)
        return ended.outcome, ended.detail


class _Output:
    """Terminal bytes of the sandbox -> text: to the live log as they come, the whole (its end) at the end."""

    def __init__(self, handle: Handle, rollout: Rollout, *, resume: bool) -> None:
        self.handle = handle
        self.rollout = rollout
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = _sent_offset(rollout) if resume else 0

    def forward(self) -> bool:
        """Send on what is new; whether there was anything."""
        moved = False
        while data := self.handle.read_output(self.offset):
            moved = True
            self.offset += len(data)
            text = self.decoder.decode(data)
            events = [
                ("output", {"text": text[start : start + MAX_EVENT_CHARS], "offset": self.offset})
                for start in range(0, len(text), MAX_EVENT_CHARS)
            ]
            self._send(events)
        return moved

    def finish(self) -> str:
        """Everything from the start, for the row; NUL replaced, the middle of a very long text left out."""
        data = bytearray()
        while piece := self.handle.read_output(len(data)):
            data += piece
        text = data.decode(errors="replace").replace("\0", "\ufffd")
        if len(text) <= MAX_OUTPUT_CHARS:
            return text
        half = MAX_OUTPUT_CHARS // 2
        return f"{text[:half]}\n[{len(text) - 2 * half} characters are not kept]\n{text[-half:]}"

    def _send(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        try:
            live.append_sync(self.rollout.pk, events)
        except (redis.RedisError, TimeoutError, OSError) as error:
            logger.warning("the live log took no output", extra={"rollout": str(self.rollout.pk), "error": str(error)})


def _sent_offset(rollout: Rollout) -> int:
    """How much of the output an earlier driver already put into the live log."""
    offset = 0
    after: tuple[int, int] | None = None
    try:
        while page := async_to_sync(live.read)(rollout.pk, after).entries:
            offset = max([offset, *(int(entry.data.get("offset", 0)) for entry in page if entry.kind == "output")])
            after = (page[-1].epoch, page[-1].n)
    except (redis.RedisError, OSError) as error:
        logger.warning("the live log cannot be read", extra={"rollout": str(rollout.pk), "error": str(error)})
    return offset
