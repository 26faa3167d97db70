"""The life of one rollout, start to reward.

From:  environments.jobs (Celery), `create_rollout` by training and commands.
To:    the Rollout row, its sandboxes, the live log; the gateway records the calls meanwhile.
Holds: one driver at a time (environments.leases). The row and the sandbox say where a rollout is, so a driver that
       dies at any line is followed by another that goes on from there: the harness does not notice.
       When a rollout has ended, nothing of its sandboxes is left.
Never: holds a database connection while it waits, decides what training does with the result.

    QUEUED -> STARTING (sandbox, session) -> RUNNING (until the harness has ended) -> VERIFYING -> ENDED
"""

import logging
import socket
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import close_old_connections, connection
from django.db.models import Q
from django.utils import timezone

from environments import leases, live
from environments.config import Budgets, Sampling
from environments.driving import Drive, End
from environments.harnesses import HarnessMissing, InvalidHarness
from environments.leases import Lease, LeaseLost
from environments.models import Harness, Model, Outcome, Rollout, Sandbox, Session, Task
from environments.sandboxes import Handle, SandboxError, Sandboxes, get_sandboxes
from environments.starting import build_launch, build_limits
from environments.tasksets.harbor import start_tree
from environments.verification import Assessment, Interrupted, Verdict, verify
from environments.work_product import build_diff, find_flags

MAX_SETUP_FAILURES = 3
SETUP_PAUSE_S = 0.5
ENQUEUED_S = 60
"""A rollout in the queue is not enqueued again for so long."""

logger = logging.getLogger(__name__)


def create_rollout(
    *,
    task: Task,
    model: Model,
    harness: Harness,
    purpose: str,
    pool: str,
    sampling: Sampling,
    budgets: Budgets,
) -> Rollout:
    """A queued rollout; `enqueue_rollout` gets it driven."""
    return Rollout.objects.create(
        task=task,
        model=model,
        harness=harness,
        purpose=purpose,
        pool=pool,
        sampling=sampling.model_dump(mode="json"),
        budgets=budgets.model_dump(mode="json"),
    )


def enqueue_rollout(rollout_id: UUID) -> None:
    """Ask a worker to drive it. Asking twice is harmless."""
    from environments.jobs import run_rollout as job

    _valkey().set(_queue_key(rollout_id), 1, ex=ENQUEUED_S)
    job.delay(str(rollout_id))


def requeue_lost_rollouts() -> int:
    """Enqueue what should be driven and is not: its job, or its driver, was lost. Returns how many."""
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    lost = Rollout.objects.filter(free, created_at__lt=now - timedelta(seconds=2)).exclude(state=Rollout.State.ENDED)
    ids = list(lost.order_by("created_at").values_list("pk", flat=True)[:1000])
    waiting = _valkey().mget([_queue_key(pk) for pk in ids]) if ids else []
    unqueued = [pk for pk, mark in zip(ids, waiting, strict=True) if mark is None]
    for pk in unqueued:
        enqueue_rollout(pk)
    return len(unqueued)


def request_cancel(rollout_id: UUID) -> None:
    """End it without a score; one that nobody drives yet ends here."""
    now = timezone.now()
    Rollout.objects.filter(pk=rollout_id, cancel_requested_at=None).update(cancel_requested_at=now)
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    queued = Rollout.objects.filter(free, pk=rollout_id, state=Rollout.State.QUEUED)
    if queued.update(state=Rollout.State.ENDED, outcome=Outcome.CANCELLED, ended_at=now):
        _tell(rollout_id, state=Rollout.State.ENDED, outcome=Outcome.CANCELLED)


def run_rollout(rollout_id: UUID, *, owner: str, stop: threading.Event) -> None:
    """Drive it to its end, from wherever it is. Returns at once where another driver has it or it has ended.

    When `stop` is set: returns soon, the lease given back and the sandbox running, for the next driver.
    """
    _valkey().delete(_queue_key(rollout_id))
    close_old_connections()
    lease = leases.take(rollout_id, owner)
    if lease is None:
        return
    try:
        _Life(lease, stop).run()
    except (Interrupted, _Elsewhere):
        leases.give_back(lease)
    except LeaseLost as error:
        logger.warning("a rollout was taken over", extra={"rollout": str(rollout_id), "error": str(error)})
    finally:
        leases.WATCH.forget(lease)
        connection.close()


class _Elsewhere(Exception):
    """Its sandbox is on another host; a driver there has to go on."""


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What `_end` writes."""

    outcome: Outcome
    error: str = ""
    verdict: Verdict | None = None


class _Life:
    def __init__(self, lease: Lease, stop: threading.Event) -> None:
        self.lease = lease
        self.stop = stop
        self.rollout = Rollout.objects.select_related("task", "harness").get(pk=lease.rollout_id)
        self.budgets = Budgets.model_validate(self.rollout.budgets)
        self.is_resumed = False
        self.sandboxes: Sandboxes = get_sandboxes(Sandbox.Kind.PROCESS)

    def run(self) -> None:
        handle = self._find_sandbox()
        if self.rollout.state == Rollout.State.VERIFYING:
            if handle is None:
                self._end(_Result(outcome=Outcome.LOST, error="The agent's sandbox was lost before it was graded."))
            else:
                self._grade(handle)
            return
        self.is_resumed = handle is not None
        if handle is None:
            handle = self._start()
        if handle is not None:
            self._drive(handle)

    # ---- start

    def _find_sandbox(self) -> Handle | None:
        """The agent's sandbox of an earlier driver. Raises _Elsewhere."""
        row = self.rollout.sandboxes.filter(purpose=Sandbox.Purpose.AGENT).order_by("-created_at").first()
        if row is None or (row.stopped_at is not None and not Path(row.directory).is_dir()):
            return None
        if row.host != socket.gethostname() and not self._is_over():
            raise _Elsewhere(row.host)
        handle = self.sandboxes.attach(row)
        if handle is None:
            Sandbox.objects.filter(pk=row.pk).update(lease_expires_at=timezone.now())  # the reaper's now
        return handle

    def _start(self) -> Handle | None:
        """A sandbox with the harness in it; None where the rollout had to end instead."""
        refusal = self._refusal()
        if refusal is not None:
            self._end(refusal)
            return None
        self._set(state=Rollout.State.STARTING, started_at=self.rollout.started_at or timezone.now())
        while self.rollout.setup_failures < MAX_SETUP_FAILURES:
            try:
                return self._launch()
            except InvalidHarness as error:
                self._set(setup_failures=MAX_SETUP_FAILURES, error=str(error))
            except HarnessMissing as error:
                self._set(setup_failures=MAX_SETUP_FAILURES, error=f"harness: {error}")
            except SandboxError as error:
                failures = self.rollout.setup_failures + 1
                self._set(setup_failures=MAX_SETUP_FAILURES if not error.retry else failures, error=str(error))
            if self.rollout.setup_failures < MAX_SETUP_FAILURES and self.stop.wait(SETUP_PAUSE_S):
                raise Interrupted
        self._end(_Result(outcome=Outcome.SANDBOX_FAILED, error=self.rollout.error))
        return None

    def _refusal(self) -> _Result | None:
        """Why it must not start (again)."""
        rollout = self.rollout
        if rollout.cancel_requested_at is not None:
            return _Result(outcome=Outcome.CANCELLED)
        if self._is_over():
            return _Result(outcome=Outcome.OVERALL_TIMEOUT, error=self._overall_message())
        if rollout.task.image:
            message = f"Task {rollout.task.name} needs the image {rollout.task.image}; process sandboxes have none."
            return _Result(outcome=Outcome.IMAGE_UNAVAILABLE, error=message)
        if rollout.num_calls:
            message = "The sandbox was lost after model calls were made; this version cannot replay them."
            return _Result(outcome=Outcome.LOST, error=message)
        return None

    def _launch(self) -> Handle:
        session = Session.objects.create(rollout=self.rollout)
        try:
            return self.sandboxes.launch(build_launch(self.rollout, session, self.budgets))
        except (SandboxError, InvalidHarness, HarnessMissing):
            Session.objects.filter(pk=session.pk).update(finished_at=timezone.now())
            raise

    # ---- run

    def _drive(self, handle: Handle) -> None:
        if self.rollout.state != Rollout.State.RUNNING:
            self._set(state=Rollout.State.RUNNING)
        connection.close()
        drive = Drive(
            lease=self.lease,
            stop=self.stop,
            handle=handle,
            rollout=self.rollout,
            budgets=self.budgets,
            is_resumed=self.is_resumed,
        )
        end = drive.run()
        if end.outcome == Outcome.LOST and self._can_start_again():
            handle.remove()
            self.is_resumed = False
            restarted = self._start()
            if restarted is not None:
                self._drive(restarted)
            return
        self._after_harness(handle, end)

    def _can_start_again(self) -> bool:
        self.rollout.refresh_from_db()
        failures = self.rollout.setup_failures + 1
        if self.rollout.num_calls or failures >= MAX_SETUP_FAILURES:
            return False
        self._set(setup_failures=failures)
        return True

    def _after_harness(self, handle: Handle, end: End) -> None:
        """Keep the work product, then grade it where the outcome is scored."""
        self.rollout.sessions.filter(finished_at=None).update(finished_at=timezone.now())
        start = start_tree(Path(self.rollout.task.directory))
        flags = [flag.to_json() for flag in find_flags(start, handle.work_tree, handle.logs, end.output)]
        self._set(
            state=Rollout.State.VERIFYING,
            outcome=end.outcome,
            error=end.error,
            exit_code=end.exit_code,
            harness_output=end.output,
            harness_ended_at=timezone.now(),
            diff=build_diff(start, handle.work_tree),
            flags=[*self.rollout.flags, *flags],
        )
        self._grade(handle)

    # ---- grade

    def _grade(self, handle: Handle) -> None:
        rollout = self.rollout
        outcome = Outcome(rollout.outcome)
        if not outcome.is_scored:
            self._end(_Result(outcome=outcome, error=rollout.error), handle)
            return
        left_s = self._overall_left_s()
        if left_s <= 0:
            self._end(_Result(outcome=Outcome.OVERALL_TIMEOUT, error=self._overall_message()), handle)
            return
        handle.stop()
        for row in rollout.sandboxes.filter(purpose=Sandbox.Purpose.VERIFIER, stopped_at=None):
            leftover = self.sandboxes.attach(row)
            if leftover is not None:
                leftover.remove()
        assessment = Assessment(
            rollout_id=rollout.pk,
            task_directory=Path(rollout.task.directory),
            work_tree=handle.work_tree,
            environment=rollout.task.settings.get("verifier", {}).get("env", {}),
            limits=build_limits(rollout.task),
            deadline_s=min(rollout.task.verifier_timeout_s, left_s),
        )
        connection.close()
        verdict = verify(assessment, self.sandboxes, self.stop)
        if verdict.log:
            live_append(rollout.pk, [("verifier", {"text": verdict.log})])
        if verdict.reward is None:
            outcome, error = Outcome.VERIFIER_ERROR, verdict.error
        else:
            error = rollout.error
        self._end(_Result(outcome=outcome, error=error, verdict=verdict), handle)

    def _end(self, result: _Result, handle: Handle | None = None) -> None:
        fields: dict[str, Any] = {"outcome": result.outcome, "error": result.error}
        if result.verdict is not None:
            fields |= {
                "reward": result.verdict.reward,
                "reward_parts": result.verdict.parts,
                "verifier_log": result.verdict.log,
                "verifier_trials": result.verdict.trials,
            }
        self.rollout.sessions.filter(finished_at=None).update(finished_at=timezone.now())
        self._set(state=Rollout.State.ENDED, ended_at=timezone.now(), lease_expires_at=None, **fields)
        if handle is None:
            return
        try:
            handle.remove()
        except (SandboxError, OSError) as error:
            logger.error("a sandbox stays for the reaper", extra={"rollout": str(self.rollout.pk), "error": str(error)})

    # ---- row, clock

    def _set(self, **fields: Any) -> None:
        """Write the row under the lease, and tell whoever watches when the state changed."""
        leases.update(self.lease, **fields)
        for name, value in fields.items():
            setattr(self.rollout, name, value)
        if "state" in fields:
            rollout = self.rollout
            _tell(rollout.pk, state=rollout.state, outcome=rollout.outcome, reward=rollout.reward, error=rollout.error)

    def _overall_left_s(self) -> float:
        started_at: datetime = self.rollout.started_at or timezone.now()
        return self.budgets.overall_time_s - (timezone.now() - started_at).total_seconds()

    def _is_over(self) -> bool:
        return self._overall_left_s() <= 0

    def _overall_message(self) -> str:
        return f"Not ended within overall_time_s = {self.budgets.overall_time_s:g} s."


def live_append(rollout_id: UUID, events: list[tuple[str, dict[str, Any]]]) -> None:
    """A live log that is away stops nobody: it is not the truth."""
    try:
        live.append_sync(rollout_id, events)
    except (redis.RedisError, TimeoutError, OSError) as error:
        logger.warning("the live log took no event", extra={"rollout": str(rollout_id), "error": str(error)})


def _tell(rollout_id: UUID, *, state: str, outcome: str, reward: float | None = None, error: str = "") -> None:
    live_append(rollout_id, [("state", {"state": state, "outcome": outcome, "reward": reward, "error": error})])


def _queue_key(rollout_id: UUID) -> str:
    return f"gyre:queued:{rollout_id}"


@cache
def _valkey() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL)
