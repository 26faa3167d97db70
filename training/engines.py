"""Engine processes: start, attach, publish weights in flight, hold, sleep, stop. Writes the Engine rows routing reads.

From:  the cell job (training.jobs.supervise_cell) and evaluation.
To:    a detached process (its own session and log file) that survives whoever started it; its Engine row.
Holds: open requests survive a publish; after it, or after its failure, the engine goes on (finally here, a lease in
       engine_front.py if this process dies). An engine that does not have the weights it claims is never left serving:
       publish probes it with an empty cache and fails the row.
Never: routes calls, decides roles.
Cost:  a publish of the built-in model takes under a second, its requests stand still meanwhile.

A weights directory is in Hugging Face layout and always has lm_head.weight. State of a process (pid, start time,
configuration) is in <RUNTIME_DIR>/engines/<id>/engine.json beside its socket, mode 0700, so that any later owner on the
same host can attach. GPU: `sleep` and `wake` use vLLM's own; written after its documentation, not yet run on a GPU.
"""

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from django.conf import settings
from django.utils import timezone

from environments.models import Engine, Model
from training.config import EngineSection
from training.engine_client import EngineClient, EngineError, Load
from training.engine_command import Listening, Weights, build_command, build_environment, choose_dtype
from training.engine_weights import (
    TOLERANCE,
    check_weights,
    digest_files,
    mean_difference,
    probe_ids,
    read_reference,
    read_vocabulary_size,
)

__all__ = ["EngineError", "RunningEngine", "StaleWeights", "attach_engine", "probe_ids", "start_engine"]

log = logging.getLogger(__name__)

START_TIMEOUT_S = 600.0
WAIT_FOR_WORD = ("/bin/sh", "-c", 'read -r word && exec "$@" </dev/null', "sh")
"""The process becomes the engine only once its state is saved: where its author dies before, it ends by itself."""
PAUSE_LEASE_S = 120.0
"""Longest an engine stands still for a weight change whose author died."""
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this one started: they must be waited for, or they stay as zombies."""


class StaleWeights(EngineError):
    """The engine does not have the weights it was given."""


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    pid: int
    started: float
    """psutil's create_time: with the pid it names one process for ever."""
    kind: str
    dtype: str
    device: str
    vocabulary_size: int
    log: str
    weights: str
    asleep: bool = False
    last_probe: tuple[float, ...] = ()
    """What the engine answered to the probe when it last changed its weights."""


def start_engine(
    *,
    pool: str,
    name: str,
    model: Model,
    weights_path: Path | None,
    version: int,
    config: EngineSection,
    directory: Path,
    cores: Sequence[int] | None,
) -> "RunningEngine":
    """Start the process, wait until it answers, set its row SERVING. Raises EngineError; the row then says why.

    directory: for its log. cores: processor numbers; None: all.
    """
    row = Engine.objects.create(pool=pool, name=name, model_name=model.name, version=version)
    row.api_key, private = secrets.token_urlsafe(24), engine_directory(row)
    listening = choose_listening(row.api_key, private)
    row.base_url = listening.base_url
    row.save(update_fields=["api_key", "base_url"])
    try:
        state = start_process(row, model, weights_path, config, listening, directory, cores)
        engine = RunningEngine(row, state)
        engine.wait_until_healthy()
        engine.client.set_version(version)
        engine.remember(weights_path or Path(state.weights), engine.probe())
    except (EngineError, OSError) as error:
        give_up(row, str(error))
        raise EngineError(str(error)) from error
    engine.set_row(Engine.State.SERVING, "")
    return engine


def attach_engine(row: Engine) -> "RunningEngine | None":
    """The running process of this row on this host, whoever started it. None: it is gone."""
    try:
        state = ProcessState(**json.loads((engine_directory(row) / "engine.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    engine = RunningEngine(row, state)
    return engine if engine.alive() else None


def engine_directory(row: Engine) -> Path:
    return Path(settings.RUNTIME_DIR) / "engines" / row.id.hex[:12]


def choose_listening(key: str, private: Path) -> Listening:
    """A socket in a private directory; with GYRE_ENGINE_HOST set, a port there, for gateways on other hosts."""
    private.mkdir(parents=True, mode=0o700)
    host = getattr(settings, "ENGINE_HOST", "") or os.environ.get("GYRE_ENGINE_HOST", "")
    if not host:
        return Listening(key=key, socket=private / "engine.sock")
    with socket.socket() as probe:
        probe.bind((host, 0))
        return Listening(key=key, host=host, port=probe.getsockname()[1])


def start_process(
    row: Engine,
    model: Model,
    weights_path: Path | None,
    config: EngineSection,
    listening: Listening,
    directory: Path,
    cores: Sequence[int] | None,
) -> ProcessState:
    model_directory = Path(model.settings.get("directory") or model.path)
    weights = Weights(
        name=model.name,
        path=weights_path or model_directory,
        config_path=model_directory,
        context_length=min(model.context_length, config.max_context_tokens),
    )
    directory.mkdir(parents=True, exist_ok=True)
    log_path = directory / f"engine-{row.name}-{row.id.hex[:6]}.log"
    with log_path.open("ab") as log_file:
        process = subprocess.Popen(
            [*WAIT_FOR_WORD, *build_command(config, weights, listening)],
            env=build_environment(config, listening, cores, os.environ, private=engine_directory(row)),
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=settings.BASE_DIR,
        )
    _children[process.pid] = process
    assert process.stdin
    with process.stdin as word:
        if cores:
            os.sched_setaffinity(process.pid, cores)
        state = ProcessState(
            pid=process.pid,
            started=psutil.Process(process.pid).create_time(),
            kind=config.kind,
            dtype=choose_dtype(config.dtype),
            device=config.device,
            vocabulary_size=read_vocabulary_size(model_directory) if config.kind == "vllm" else 256,
            log=str(log_path),
            weights=str(weights.path),
        )
        save_state(row, state)
        word.write(b"go\n")
    return state


def save_state(row: Engine, state: ProcessState) -> None:
    path = engine_directory(row) / "engine.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(asdict(state)))
    unfinished.replace(path)


def give_up(row: Engine, reason: str) -> None:
    log.error("Engine failed", extra={"engine": row.name, "reason": reason})
    found = attach_engine(row)
    if found:
        found.end_process()
    Engine.objects.filter(pk=row.pk).update(
        state=Engine.State.FAILED, state_reason=reason, num_running=0, num_waiting=0
    )
    row.refresh_from_db()
    shutil.rmtree(engine_directory(row), ignore_errors=True)


class RunningEngine:
    def __init__(self, row: Engine, state: ProcessState) -> None:
        self.row = row
        self.state = state
        self.client = EngineClient(row.base_url, row.api_key, row.model_name)
        self._last_load: tuple[float, float] | None = None

    @property
    def pid(self) -> int:
        return self.state.pid

    def alive(self) -> bool:
        """Whether the process exists; a process that ended is waited for."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            return False
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.state.started and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def wait_until_healthy(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.client.is_healthy():
            if not self.alive():
                raise EngineError(f"The engine ended while starting. {self.explain()}")
            if time.monotonic() > deadline:
                raise EngineError(f"The engine did not answer within {timeout_s:g} s. {self.explain()}")
            time.sleep(0.1)

    def poll(self) -> Load | None:
        """Heartbeat and load into the row; None where it is gone (the row is then FAILED) or asleep."""
        if not self.alive():
            give_up(self.row, f"The engine process ended. {self.explain()}")
            return None
        if self.state.asleep:
            Engine.objects.filter(pk=self.row.pk).update(heartbeat_at=timezone.now())
            return None
        try:
            load = self.client.load()
        except EngineError as error:
            log.warning("Engine does not tell its load", extra={"engine": self.row.name, "reason": str(error)})
            return None
        Engine.objects.filter(pk=self.row.pk).update(
            heartbeat_at=timezone.now(),
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            kv_use=load.kv_use,
            tokens_per_s=self._rate(load),
        )
        return load

    def _rate(self, load: Load) -> float:
        now = time.monotonic()
        since, tokens = self._last_load or (now, load.generated_tokens)
        self._last_load = (now, load.generated_tokens)
        return max(0.0, load.generated_tokens - tokens) / (now - since) if now > since else 0.0

    def publish(
        self,
        weights_path: Path,
        version: int,
        cache_policy: str = "recompute",
        reference_logprobs: Sequence[float] | None = None,
    ) -> float:
        """Give the engine new weights while its requests stay open; returns seconds. A held or sleeping engine serves
        afterwards.

        cache_policy: recompute (open contexts are read again) or keep (old keys and values stay).
        reference_logprobs: the trainer's, of probe_ids(vocabulary)[1:], temperature 1; None: those that the directory
        brings along (`probe_logprobs` in its gyre.json), if any.
        Raises StaleWeights, with the row FAILED and the process ended, when the engine does not have them; EngineError
        likewise when the change failed half-way, but with the engine as it was when the files were refused beforehand.
        """
        if self.state.kind == "vllm":
            check_weights(weights_path)
        began = time.monotonic()
        self._continue_process()
        with self._standing_still(version, cache_policy):
            self.client.reload(str(weights_path))
            self.client.set_version(version)
            self.row.version = version
        reference = read_reference(weights_path) if reference_logprobs is None else reference_logprobs
        self.remember(weights_path, self._checked_probe(weights_path, reference))
        self.set_row(Engine.State.SERVING, "")
        return time.monotonic() - began

    def probe(self) -> list[float]:
        """Logprobs of probe_ids, computed without cached keys and values."""
        return self.client.prompt_logprobs(probe_ids(self.state.vocabulary_size)) if self.state.kind == "vllm" else []

    def remember(self, weights_path: Path, probe: Sequence[float]) -> None:
        self._update_state(weights=str(weights_path), last_probe=tuple(probe))

    @contextmanager
    def _standing_still(self, version: int, cache_policy: str) -> Iterator[None]:
        self.set_row(Engine.State.HOLDING, f"weights change to version {version}")
        try:
            self.client.pause(keep_cache=cache_policy == "keep", lease_s=PAUSE_LEASE_S, version=version)
            yield
        except EngineError as error:
            detail = "" if self.alive() else self.explain()
            give_up(self.row, f"The weight change to version {version} failed: {error} {detail}")
            raise
        self.client.resume()

    def _is_changed(self, weights_path: Path) -> bool:
        """Whether the files differ from what the engine was last given."""
        return digest_files(weights_path) != digest_files(Path(self.state.weights))

    def _checked_probe(self, weights_path: Path, reference: Sequence[float] | None) -> list[float]:
        after = self.probe()
        fault = ""
        if after == list(self.state.last_probe) and after and self._is_changed(weights_path):
            fault = "its logprobs did not change although the weights did"
        if reference is not None and after:
            difference = mean_difference(after, reference)
            if not difference <= TOLERANCE[self.state.dtype]:
                fault = f"its logprobs differ from the trainer's by {difference:.1e} on average"
        if fault:
            reason = f"The engine does not have the weights of {weights_path}: {fault}."
            give_up(self.row, reason)
            raise StaleWeights(reason)
        return after

    def hold(self, reason: str) -> None:
        """Freeze open requests, take no new ones into the engine, until `release`."""
        self.set_row(Engine.State.HOLDING, reason)
        self.client.pause(keep_cache=True)

    def release(self) -> None:
        self.client.resume()
        self.set_row(Engine.State.SERVING, "")

    def sleep(self, reason: str = "its cell trains") -> None:
        """Leave the devices to the trainer. Weights and open requests stay.

        On CPU vLLM's own sleep does nothing and answers success: the process is stopped (SIGSTOP) instead, which frees
        its cores but not its memory. Calls still open on it must have moved on before (2.5 in the design of record).
        """
        self.hold(reason)
        if self.state.device == "cuda":
            self.client.post("/sleep?level=1&mode=keep")
        else:
            self._signal(signal.SIGSTOP)
        self._update_state(asleep=True)

    def wake(self) -> None:
        if self.state.device == "cuda":
            self.client.post("/wake_up")
        self._continue_process()
        self.release()

    def _continue_process(self) -> None:
        if self.state.asleep:
            self._signal(signal.SIGCONT)
            self._update_state(asleep=False)

    def stop(self, grace_s: float = 10.0) -> None:
        """End the process and everything it started; the row becomes STOPPED."""
        self.set_row(Engine.State.DRAINING, "stopping")
        self.end_process(grace_s)
        self.set_row(Engine.State.STOPPED, "")
        self.client.close()
        shutil.rmtree(engine_directory(self.row), ignore_errors=True)

    def end_process(self, grace_s: float = 5.0) -> None:
        """Ends the whole session of the process: first politely, then surely."""
        if self.alive():
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.05)
        self._signal(signal.SIGKILL)
        child = _children.pop(self.pid, None)
        if child is not None:
            child.wait()

    def explain(self) -> str:
        """The last lines of its log that look like an error, else its last line."""
        try:
            with Path(self.state.log).open(errors="replace") as file:
                lines = [line.strip() for line in deque(file, 200) if line.strip()]
        except OSError:
            return "It wrote no log."
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return f"Log {self.state.log}: {(errors or lines or ['(empty)'])[-1][:400]}"

    def set_row(self, state: Engine.State, reason: str) -> None:
        self.row.state, self.row.state_reason, self.row.heartbeat_at = state, reason, timezone.now()
        self.row.save(update_fields=["state", "state_reason", "heartbeat_at", "version"])

    def _signal(self, number: int) -> None:
        """To the whole session; not when the pid has come to name another process."""
        if psutil.pid_exists(self.pid) and psutil.Process(self.pid).create_time() != self.state.started:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _update_state(self, **changes: Any) -> None:
        self.state = ProcessState(**{**asdict(self.state), **changes})
        save_state(self.row, self.state)
