"""How a rollout goes from wherever it is to its end, under one lease.

From:  environments.rollouts.run_rollout.
To:    the Rollout row, its sandboxes, the live log.
Holds: each phase writes its result before the next begins, so whoever takes over goes on from the row's state.
       The row says ENDED before the agent's sandbox is removed; what a kill leaves between is the reaper's.
Never: holds a database connection while it waits.
"""

import logging
import socket
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from django.db import connection
from django.utils import timezone

from environments import leases, live
from environments.config import Budgets
from environments.driving import RENEW_SANDBOX_S, Drive, End
from environments.egress.opening import open_for, remove_for
from environments.egress.proxy import Proxy
from environments.egress.record import find_network_flags
from environments.harnesses import HARNESSES, HarnessMissing, InvalidHarness
from environments.images.errors import ImageUnavailable
from environments.leases import Lease, LeaseLost
from environments.models import Outcome, Rollout, Sandbox, Session
from environments.sandboxes import Handle, SandboxError, Sandboxes, get_sandboxes
from environments.starting import build_launch, build_limits, choose_kind, find_image
from environments.tasksets.harbor import start_tree
from environments.verification import Assessment, Interrupted, Verdict, verify
from environments.work_product import build_diff, find_flags

MAX_SETUP_FAILURES = 3
SETUP_PAUSE_S = 0.5
NOTEWORTHY_WAIT_S = 1.0

logger = logging.getLogger(__name__)


class Elsewhere(Exception):
    """Its sandbox is on another host; a driver there has to go on."""


class _Cancelled(Exception):
    """Somebody asked for its end while it was graded."""


class _Pulse:
    """Keeps rollout and agent sandbox leased while the verifier runs."""

    def __init__(self, lease: Lease, handle: Handle) -> None:
        self.lease = lease
        self.handle = handle
        self.renewed_at = time.monotonic()

    def beat(self) -> None:
        """Raises LeaseLost, _Cancelled."""
        if leases.WATCH.look(self.lease).cancel_requested:
            raise _Cancelled
        if time.monotonic() > self.renewed_at + RENEW_SANDBOX_S:
            self.renewed_at = time.monotonic()
            self.handle.renew()
            connection.close()


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What `_end` writes."""

    outcome: Outcome
    error: str = ""
    verdict: Verdict | None = None


class Life:
    def __init__(self, lease: Lease, stop: threading.Event) -> None:
        self.lease = lease
        self.stop = stop
        self.rollout = Rollout.objects.select_related("task", "harness").get(pk=lease.rollout_id)
        self.budgets = Budgets.model_validate(self.rollout.budgets)
        self.is_resumed = False
        self.egress: Proxy | None = None
        self.sandboxes: Sandboxes = get_sandboxes(choose_kind(self.rollout.task, self.rollout.sandboxing))

    def run(self) -> None:
        try:
            self._run()
        finally:
            self._close_egress()

    def _run(self) -> None:
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
        else:
            self._open_egress()
        if handle is not None:
            self._drive(handle)

    # ---- start

    def _find_sandbox(self) -> Handle | None:
        """The agent's sandbox of an earlier driver. Raises Elsewhere."""
        row = self.rollout.sandboxes.filter(purpose=Sandbox.Purpose.AGENT).order_by("-created_at").first()
        if row is None or (row.stopped_at is not None and not Path(row.directory).is_dir()):
            return None
        if row.host != socket.gethostname() and not self._is_over():
            raise Elsewhere(row.host)
        self.sandboxes = get_sandboxes(row.kind)
        handle = self.sandboxes.attach(row)
        if handle is None:
            _give_to_reaper(row.pk)
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
            except ImageUnavailable as error:
                task = self.rollout.task
                message = f"Task {task.name} needs the image {task.image or 'of this machine'}. {error}"
                self._end(_Result(outcome=Outcome.IMAGE_UNAVAILABLE, error=message))
                return None
            except _Cancelled:
                self._end(_Result(outcome=Outcome.CANCELLED))
                return None
            except InvalidHarness as error:
                self._set(setup_failures=MAX_SETUP_FAILURES, error=str(error))
            except HarnessMissing as error:
                self._set(setup_failures=MAX_SETUP_FAILURES, error=f"harness: {error}")
            except SandboxError as error:
                failures = self.rollout.setup_failures + 1
                self._set(setup_failures=MAX_SETUP_FAILURES if not error.retry else failures, error=str(error))
            except OSError as error:
                failures = self.rollout.setup_failures + 1
                self._set(setup_failures=failures, error=f"storage: the sandbox cannot be prepared: {error}")
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
        if rollout.task.image and self.sandboxes.kind == Sandbox.Kind.PROCESS:
            message = f"Task {rollout.task.name} needs the image {rollout.task.image}; process sandboxes have none."
            return _Result(outcome=Outcome.IMAGE_UNAVAILABLE, error=message)
        if not (Path(rollout.task.directory) / "tests" / "test.sh").is_file():
            message = f"Task {rollout.task.name} is not in {rollout.task.directory} any more; add its task set again."
            return _Result(outcome=Outcome.SANDBOX_FAILED, error=message)
        reason = not_replayable(rollout.harness.program)
        if rollout.num_calls and reason:
            message = f"The sandbox was lost after {rollout.num_calls} model calls, which cannot be replayed: {reason}"
            return _Result(outcome=Outcome.LOST, error=message)
        return None

    def _launch(self) -> Handle:
        """With a session of its own; those before it are over."""
        self._finish_sessions()
        image = self._find_image()
        session = Session.objects.create(rollout=self.rollout)
        try:
            launch = build_launch(self.rollout, session, self.budgets, image, self._open_egress())
            handle = self.sandboxes.launch(launch)
        except (SandboxError, InvalidHarness, HarnessMissing, OSError):
            self._finish_sessions()
            raise
        try:
            self._set(state=Rollout.State.RUNNING)
        except LeaseLost:
            handle.remove()  # starting took longer than the lease: another driver has its own by now
            raise
        return handle

    def _find_image(self) -> str | None:
        """Id of the image that this kind of sandbox starts from; None: it has none. Raises ImageUnavailable.

        An image may take minutes to be made; that is no time of the rollout.
        """
        if self.sandboxes.kind != Sandbox.Kind.DOCKER:
            return None
        began = timezone.now()
        try:
            image = find_image(self.rollout.task, stop=self.stop, keep_alive=self._beat)
        except InterruptedError:
            raise Interrupted from None
        waited = timezone.now() - began
        if waited.total_seconds() > NOTEWORTHY_WAIT_S:
            self._set(started_at=(self.rollout.started_at or began) + waited)
        return image

    def _beat(self) -> None:
        """While an image is made. Raises LeaseLost, _Cancelled."""
        if leases.WATCH.look(self.lease).cancel_requested:
            raise _Cancelled

    # ---- network

    def _open_egress(self) -> Path | None:
        """The socket of its proxy, where its task names hosts and its kind of sandbox can have one."""
        if self.egress is None and self.sandboxes.kind == Sandbox.Kind.DOCKER:
            self.egress = open_for(self.rollout)
        return self.egress.path if self.egress is not None else None

    def _close_egress(self) -> None:
        if self.egress is not None:
            self.egress.close()
            self.egress = None

    def _finish_sessions(self) -> None:
        self.rollout.sessions.filter(finished_at=None).update(finished_at=timezone.now())

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
        is_lost = bool(self.rollout.num_calls and not_replayable(self.rollout.harness.program))
        if is_lost or failures >= MAX_SETUP_FAILURES:
            return False
        self._set(setup_failures=failures)
        return True

    def _after_harness(self, handle: Handle, end: End) -> None:
        """Keep the work product, then grade it where the outcome is scored."""
        self._finish_sessions()
        start = start_tree(Path(self.rollout.task.directory)) or self.sandboxes.start_tree(handle.row.image)
        self._close_egress()
        found = find_flags(start, handle.work_tree, handle.logs, end.output)
        flags = [flag.to_json() for flag in [*found, *find_network_flags(self.rollout.pk)]]
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
            else:
                _give_to_reaper(row.pk)
        try:
            image = handle.keep_image()
        except SandboxError as failure:
            self._end(_Result(outcome=Outcome.VERIFIER_ERROR, error=str(failure)), handle)
            return
        assessment = Assessment(
            rollout_id=rollout.pk,
            task_directory=Path(rollout.task.directory),
            work_tree=handle.work_tree,
            image=image,
            environment=rollout.task.settings.get("verifier", {}).get("env", {}),
            limits=build_limits(rollout.task),
            deadline_s=min(rollout.task.verifier_timeout_s, left_s),
        )
        connection.close()
        try:
            verdict = verify(assessment, self.sandboxes, self.stop, _Pulse(self.lease, handle).beat)
        except _Cancelled:
            self._end(_Result(outcome=Outcome.CANCELLED), handle)
            return
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
        self._finish_sessions()
        ended_at = timezone.now()
        self._set(state=Rollout.State.ENDED, ended_at=ended_at, lease_expires_at=None, **fields)
        remove_for(self.rollout.pk)
        self.rollout.sandboxes.update(lease_expires_at=ended_at)  # who is killed from here on leaves them to the reaper
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
            tell(rollout.pk, state=rollout.state, outcome=rollout.outcome, reward=rollout.reward, error=rollout.error)

    def _overall_left_s(self) -> float:
        started_at: datetime = self.rollout.started_at or timezone.now()
        return self.budgets.overall_time_s - (timezone.now() - started_at).total_seconds()

    def _is_over(self) -> bool:
        return self._overall_left_s() <= 0

    def _overall_message(self) -> str:
        return f"Not ended within overall_time_s = {self.budgets.overall_time_s:g} s."


def not_replayable(program: str) -> str:
    """Why a lost session of this program cannot be answered from the record; "" where it can."""
    known = HARNESSES.get(program)
    return known.habits.not_replayable if known else ""


def _give_to_reaper(sandbox: UUID) -> None:
    Sandbox.objects.filter(pk=sandbox).update(lease_expires_at=timezone.now())


def live_append(rollout_id: UUID, events: list[tuple[str, dict[str, Any]]]) -> None:
    """A live log that is away stops nobody: it is not the truth."""
    try:
        live.append_sync(rollout_id, events)
    except (redis.RedisError, TimeoutError, OSError) as error:
        logger.warning("the live log took no event", extra={"rollout": str(rollout_id), "error": str(error)})


def tell(rollout_id: UUID, *, state: str, outcome: str, reward: float | None = None, error: str = "") -> None:
    live_append(rollout_id, [("state", {"state": state, "outcome": outcome, "reward": reward, "error": error})])
