"""Grade what an agent left: its own tests in a fresh sandbox made from a copy of the agent's work tree and container.

From:  environments.rollouts, when everything in the agent's sandbox has ended; `manage.py tasks check`.
To:    a Verdict: reward, log, trials.
Holds: tests are mounted read-only and were never in the agent's sandbox; a verifier that crashes, hangs or leaves no
       readable reward is an error, retried within one total deadline, and never a zero.
Never: believes a reward file that is a link, larger than 1 MiB, not a finite number, or older than the sandbox.
"""

import json
import math
import os
import shlex
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from environments.sandboxes import Handle, Launch, Limits, Mount, SandboxError, Sandboxes
from environments.sandboxes.trees import DIRECTORY_FLAGS, FILE_FLAGS

MAX_TRIALS = 3
MAX_REWARD_BYTES = 1 << 20
MAX_LOG_CHARS = 64 * 1024
POLL_S = (0.01, 0.25)
RENEW_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What is to be graded. deadline_s: for all trials together. image: what the agent's container became, if it had one."""

    rollout_id: UUID | None
    task_directory: Path
    work_tree: Path | None
    environment: Mapping[str, str]
    limits: Limits
    deadline_s: float
    image: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """reward None: the verifier failed; `error` says how."""

    reward: float | None
    parts: dict[str, float] = field(default_factory=dict)
    log: str = ""
    trials: int
    error: str = ""


class VerifierError(Exception):
    """Boundary: verifier. It gave no reward that can be believed; a retry may help."""


class Interrupted(Exception):
    """The worker is to stop; nothing of this trial is left."""


def verify(
    assessment: Assessment,
    sandboxes: Sandboxes,
    stop: threading.Event,
    keep_alive: Callable[[], None] = lambda: None,
) -> Verdict:
    """Run the task's tests until one trial yields a reward. Raises Interrupted when `stop` is set.

    keep_alive: called while it waits; what it raises ends the trial and leaves nothing of it.
    """
    deadline = time.monotonic() + assessment.deadline_s
    log, error, trials = "", "the deadline was over before it began", 0
    while trials < MAX_TRIALS and time.monotonic() < deadline:
        trials += 1
        try:
            reward, parts, log = _run_trial(assessment, sandboxes, deadline, stop, keep_alive)
        except VerifierError as failure:
            error, log = str(failure), getattr(failure, "log", log)
        except SandboxError as failure:
            error = str(failure)
        except OSError as failure:
            error = f"the tests cannot be read: {failure}"
        else:
            return Verdict(reward=reward, parts=parts, log=log, trials=trials)
    return Verdict(reward=None, log=log, trials=trials, error=f"verifier: {error} (after {trials} trials)")


def _run_trial(
    assessment: Assessment,
    sandboxes: Sandboxes,
    deadline: float,
    stop: threading.Event,
    keep_alive: Callable[[], None],
) -> tuple[float, dict[str, float], str]:
    handle = sandboxes.launch(_build_launch(assessment, deadline))
    try:
        timed_out = _wait(handle, deadline, stop, keep_alive)
        log = read_log(handle)
        try:
            if timed_out:
                raise VerifierError("tests/test.sh did not end in time")
            reward, parts = read_reward(handle.logs)
        except VerifierError as error:
            error.log = log  # type: ignore[attr-defined]
            raise
        return reward, parts, log
    finally:
        handle.remove()


def _build_launch(assessment: Assessment, deadline: float) -> Launch:
    tests = assessment.task_directory / "tests"
    return Launch(
        rollout_id=assessment.rollout_id,
        session_id=None,
        purpose="verifier",
        command=("/bin/sh", "-c", f"mkdir -p /logs/verifier && exec {_interpreter(tests / 'test.sh')} /tests/test.sh"),
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin:/gyre/venv/bin"} | dict(assessment.environment),
        work_tree=assessment.work_tree,
        read_only=(Mount(source=tests, target="/tests"),),
        gateway=False,
        timeout_s=max(0.1, deadline - time.monotonic()),
        limits=assessment.limits,
        image=assessment.image,
    )


def _interpreter(script: Path) -> str:
    """From its first line, so that it need not be executable; the plain shell where it names none."""
    with script.open("rb") as file:
        first = file.readline(200).decode(errors="replace").strip()
    return shlex.join(shlex.split(first[2:])) if first.startswith("#!") and first[2:].strip() else "/bin/sh"


def _wait(handle: Handle, deadline: float, stop: threading.Event, keep_alive: Callable[[], None]) -> bool:
    """Until it has ended; True: it did not in time. Raises Interrupted."""
    pause_s = POLL_S[0]
    renewed_at = time.monotonic()
    while True:
        status = handle.status()
        if not status.running:
            return status.timed_out
        if time.monotonic() > deadline + 1.0:
            return True
        if time.monotonic() > renewed_at + RENEW_S:
            handle.renew()
            renewed_at = time.monotonic()
        keep_alive()
        if stop.wait(pause_s):
            raise Interrupted
        pause_s = min(pause_s * 1.5, POLL_S[1])


def read_log(handle: Handle) -> str:
    """The end of what the tests printed."""
    text = b""
    while piece := handle.read_output(len(text)):
        text += piece
    return text.decode(errors="replace").replace("\0", "\ufffd")[-MAX_LOG_CHARS:]


def read_reward(logs: Path) -> tuple[float, dict[str, float]]:
    """The reward of /logs/verifier and the other numbers beside it. Raises VerifierError.

    reward.json (a number, or an object with `reward`) wins over reward.txt.
    """
    try:
        directory = os.open(logs / "verifier", DIRECTORY_FLAGS)
    except OSError as error:
        raise VerifierError("there is no directory /logs/verifier") from error
    try:
        text = _read_plain(directory, "reward.json")
        if text is not None:
            return _parse_json(text)
        text = _read_plain(directory, "reward.txt")
        if text is None:
            raise VerifierError("neither reward.json nor reward.txt was written to /logs/verifier")
        return _number("reward.txt", text.strip()), {}
    finally:
        os.close(directory)


def _read_plain(directory: int, name: str) -> str | None:
    try:
        fd = os.open(name, FILE_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VerifierError(f"{name} is a link or cannot be read") from error
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise VerifierError(f"{name} is not a plain file of its own")
        content = file.read(MAX_REWARD_BYTES + 1)
    if len(content) > MAX_REWARD_BYTES:
        raise VerifierError(f"{name} is larger than 1 MiB")
    return content.decode(errors="replace")


def _parse_json(text: str) -> tuple[float, dict[str, float]]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VerifierError(f"reward.json is not JSON: {error}") from error
    if not isinstance(value, dict):
        return _number("reward.json", value), {}
    if "reward" not in value:
        raise VerifierError("reward.json has no field `reward`")
    parts = {
        str(name): float(part)
        for name, part in value.items()
        if name != "reward" and isinstance(part, int | float) and math.isfinite(part)
    }
    return _number("reward.json", value["reward"]), parts


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool | None):
            raise ValueError
        number = float(value)
        if math.isfinite(number):
            return number
    except (ValueError, TypeError, OverflowError):
        pass
    raise VerifierError(f"{name} holds {str(value)[:60]!r} where a finite number belongs")
