"""The trainer of one cell: an operating-system process that waits for orders in rows and carries them out.

    order                                         done when (one transaction, after the files are durable)
    Attempt WARMING, demonstrations ended         Checkpoint of step 0, Version 0
    OptimizerStep(policy, REQUESTED or TRAINING)  step DONE, groups EATEN, members, counters, metrics, and the next
                                                  Version at a burst's end; then, engines going on, a Checkpoint

From:  the controller (orders), the gateway's record (nodes); `manage.py trainer --cell <uuid>` runs it.
To:    rows, and files below training.checkpoints.AttemptFiles.
Holds: it may be killed at any line: the next process starts from the last Checkpoint row, trains again what was done
       after it from the same groups and stored advantages (no row changes), removes files that no row names, and goes
       on. So no group is skipped or eaten twice.
Never: decides what is trained when; a requested step is the order, whatever the cell's role says.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, cos, pi
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from environments.models import Model
from training.bad_numbers import drop_offline_step, drop_policy_step
from training.checkpoints import (
    AttemptFiles,
    load_checkpoint,
    orphaned,
    remove_directories,
    save_checkpoint,
    versions_to_remove,
)
from training.config import RunConfig
from training.events import record_event, ring
from training.export import ExportError, build_provenance_of, find_version, save_version
from training.kinds import metric_kind, scheduled_config
from training.memory import peak_bytes, release_free_memory
from training.metrics import save_metrics
from training.models import Attempt, Cell, Checkpoint, OptimizerStep, RunEvent, Version
from training.offline import build_offline_plan
from training.policy_batch import load_policy_batch, load_trained
from training.step_commit import TrainerBusy, commit_step
from training.storage import write_when_there_is_room
from training.trainer import NotFinite, PolicyTerms, Trainer, TrainerError
from training.trainer_group import announce, open_group
from training.warm_start import CHECKPOINT_STEPS, demonstrations_ended

log = logging.getLogger(__name__)
POLL_S = 0.15
LOCK_S = 30.0
PROGRESS_S = 1.0


@dataclass
class TrainerLoop:
    """`run` until stopped, the attempt is over, or memory passed its limit (then the cell's job starts a new one)."""

    cell_id: UUID
    should_stop: Callable[[], bool]
    memory_limit_bytes: int = field(default_factory=lambda: int(getattr(settings, "TRAINER_MEMORY_BYTES", 8 * 10**9)))
    trainer: Trainer | None = None
    _noted_at: float = 0.0

    def run(self) -> None:
        attempt = self._attempt()
        lock = take_lock(AttemptFiles.of(attempt.id).lock, self.should_stop)
        try:
            while not self.should_stop():
                worked = self.turn()
                if self._attempt().is_over:
                    return
                if worked and peak_bytes() > self.memory_limit_bytes:
                    log.warning("memory limit passed, restarting", extra={"bytes": peak_bytes()})
                    return
                if not worked:
                    let_go()
                    time.sleep(POLL_S)
        except InterruptedError:
            log.info("stopped in the middle of a step, which was not applied")
        finally:
            os.close(lock)

    def turn(self) -> bool:
        """Carry out one order, if there is one. returns whether there was."""
        attempt = self._attempt()
        if attempt.is_over:
            return False
        if attempt.state == Attempt.State.WARMING:
            return self._warm(attempt)
        step = next_step(attempt)
        if step is None:
            return False
        self._policy_step(attempt, step)
        return True

    def _attempt(self) -> Attempt:
        return Cell.objects.select_related("attempt__run").get(pk=self.cell_id).attempt

    # ---- the model

    def _ready_trainer(self, attempt: Attempt, config: RunConfig) -> Trainer:
        """The trainer with the weights of `attempt.step`: as it is, or loaded and caught up."""
        if self.trainer is None:
            self.trainer = self._load(attempt, config)
        return self.trainer

    def _load(self, attempt: Attempt, config: RunConfig) -> Trainer:
        remove_orphans(attempt)
        version = Version.objects.filter(attempt=attempt, number=0).exclude(path="").first()
        reloads = version is not None and config.optimization.adapter == "none"
        source = version.path if version and reloads else starting_point(config)
        ranks = open_group(config.optimization.devices, config.optimization.division)
        trainer = Trainer.load(source, settings=config.optimization, seed=config.seed, ranks=ranks)
        trainer.should_stop = self.should_stop
        trainer.reference_path = Path(version.path) if version else None
        announce(ranks, "reference", trainer.reference_path)
        checkpoint = Checkpoint.objects.filter(attempt=attempt).order_by("-step").first()
        if checkpoint is not None:
            load_checkpoint(trainer, Path(checkpoint.path))
            replay(trainer, attempt, config, after=checkpoint.step)
        return trainer

    # ---- before version 0: warm start, supervised and preference runs

    def _warm(self, attempt: Attempt) -> bool:
        if Version.objects.filter(attempt=attempt, number=0).exists() or not demonstrations_ended(attempt):
            return False
        if attempt.wanted != Attempt.Wanted.RUN:
            return False
        config = config_of(attempt)
        try:
            if not self._offline_steps(attempt, config):
                return False
        except TrainerError as error:
            fail_offline(attempt, str(error))
            return False
        assert self.trainer is not None
        self.trainer.reset_optimizer()
        release_free_memory()
        checkpoint = self._save_checkpoint(attempt, step=0, version=0)
        version = self._save_version(attempt, config, number=0, step=0)
        self.trainer.reference_path = Path(version.path)
        with transaction.atomic():
            locked = Attempt.objects.select_for_update(no_key=True).get(pk=attempt.id)
            checkpoint.save()
            version.save()
            done = locked.metrics.filter(kind=metric_kind(config)).order_by("-step").values_list("step", flat=True)
            text = f"Version 0 was written after {done.first() or 0} {metric_kind(config)} steps."
            record_event(locked, "weights_written", text, version=0)
        remove_directories(AttemptFiles.of(attempt.id).warm_checkpoints())
        ring(attempt.id)
        return True

    def _offline_steps(self, attempt: Attempt, config: RunConfig) -> bool:
        """Do what is left of the plan. returns whether all is done; not when a pause was asked for."""
        files, kind = AttemptFiles.of(attempt.id), metric_kind(config)
        trainer = self._ready_trainer(attempt, config)
        plan = build_offline_plan(attempt, config, trainer, references=files.references)
        done = 0
        if saved := files.warm_checkpoints():
            done = int(load_checkpoint(trainer, saved[-1])["step"])
        save_metrics(attempt, kind=kind, step=done, values={"steps_total": float(len(plan.batches))})
        for number in range(done + 1, len(plan.batches) + 1):
            let_go()
            try:
                report = plan.take(trainer, plan.batches[number - 1], plan.rate(number))
                save_metrics(attempt, kind=kind, step=number, values=report.metrics)
            except NotFinite as error:
                drop_offline_step(attempt.pk, kind=kind, number=number, cause=str(error))
            ring(attempt.id)
            wanted = Attempt.objects.values_list("wanted", flat=True).get(pk=attempt.pk)
            paused = wanted != Attempt.Wanted.RUN
            if paused or (number % CHECKPOINT_STEPS == 0 and number < len(plan.batches)):
                self._warm_checkpoint(attempt, files, number)
            if paused:
                return False
        return True

    def _warm_checkpoint(self, attempt: Attempt, files: AttemptFiles, number: int) -> None:
        trainer = self.trainer
        assert trainer is not None
        path = files.warm_checkpoint(number)
        self._durably(attempt, lambda: save_checkpoint(trainer, path, counters={"step": number}))
        remove_directories(files.warm_checkpoints()[:-1])

    def _durably(self, attempt: Attempt, write: Callable[[], int]) -> int:
        return write_when_there_is_room(attempt, write, should_stop=self.should_stop)

    # ---- policy steps

    def _policy_step(self, attempt: Attempt, step: OptimizerStep) -> None:
        config = config_of(attempt)
        OptimizerStep.objects.filter(pk=step.pk).update(state=OptimizerStep.State.TRAINING, started_at=timezone.now())
        try:
            trainer = self._ready_trainer(attempt, config)
            started = time.monotonic()
            batch = load_policy_batch(step, config)
            metrics = {"load_s": time.monotonic() - started}
            trainer.on_micro_batch = self._progress_of(step)
            let_go()
            report = trainer.policy_step(
                batch.rollouts, terms=policy_terms(config), learning_rate=learning_rate(config, step.number)
            )
        except NotFinite as error:
            version = self._due_version(attempt, config, step.number)
            drop_policy_step(step, batch, str(error), version=version)
            ring(attempt.id)
            self._checkpoint_if_due(attempt, config, step.number)
            return
        except (TrainerError, MemoryError) as error:
            fail_step(step, str(error))
            return
        release_free_memory()
        started = time.monotonic()
        version = self._due_version(attempt, config, step.number)
        metrics |= report.metrics | {"save_s": time.monotonic() - started}
        commit_step(step, batch, report, metrics=metrics, version=version)
        ring(attempt.id)
        self._checkpoint_if_due(attempt, config, step.number)
        self._remove_old_files(attempt, config)

    def _due_version(self, attempt: Attempt, config: RunConfig, number: int) -> Version | None:
        """At a burst's end (the last may be short): the weights on disk, and their row, not saved yet."""
        if number % config.schedule.burst_steps and number < config.optimization.steps:
            return None
        bursts = ceil(number / config.schedule.burst_steps)
        return self._save_version(attempt, config, number=bursts, step=number)

    def _checkpoint_if_due(self, attempt: Attempt, config: RunConfig, number: int) -> None:
        """After the step's commit, so that nobody waits for a gigabyte: until it is there, replay covers the step."""
        if number % config.schedule.checkpoint_every and number < config.optimization.steps:
            return
        let_go()
        self._save_checkpoint(attempt, step=number, version=number // config.schedule.burst_steps).save()

    def _save_checkpoint(self, attempt: Attempt, *, step: int, version: int) -> Checkpoint:
        assert self.trainer is not None
        path = AttemptFiles.of(attempt.id).checkpoint(step)
        trainer, counters = self.trainer, {"step": step, "version": version}
        size = self._durably(attempt, lambda: save_checkpoint(trainer, path, counters=counters))
        return Checkpoint(attempt_id=attempt.id, step=step, version=version, path=str(path), size_bytes=size)

    def _save_version(self, attempt: Attempt, config: RunConfig, *, number: int, step: int) -> Version:
        assert self.trainer is not None
        path = AttemptFiles.of(attempt.id).version(number)
        provenance = {**build_provenance_of(attempt), "version": number, "step": step}
        precision = "fp32" if config.engine.dtype == "float32" else config.optimization.precision
        trainer, source = self.trainer, base_model(config).path
        self._durably(
            attempt,
            lambda: save_version(trainer, path, source=source, provenance=provenance, precision=precision),
        )
        return Version(attempt_id=attempt.id, number=number, step=step, path=str(path))

    def _progress_of(self, step: OptimizerStep) -> Callable[[int, int], None]:
        """Into OptimizerStep.metrics, at most once a second."""

        def note(done: int, total: int) -> None:
            if time.monotonic() - self._noted_at >= PROGRESS_S:
                self._noted_at = time.monotonic()
                progress = {"done": done, "total": total, "unit": "micro-batches"}
                OptimizerStep.objects.filter(pk=step.pk).update(metrics={"progress": progress})
                ring(step.attempt_id)
                let_go()

        return note

    def _remove_old_files(self, attempt: Attempt, config: RunConfig) -> None:
        """Retention: one checkpoint, the last versions and pinned ones."""
        checkpoints = list(Checkpoint.objects.filter(attempt=attempt).order_by("-step")[1:])
        for checkpoint in checkpoints:
            remove_directories([Path(checkpoint.path)])
            checkpoint.delete()
        versions = {version.number: version for version in Version.objects.filter(attempt=attempt).exclude(path="")}
        pinned = [number for number, version in versions.items() if version.pinned or version.published_at is None]
        for number in versions_to_remove(versions, keep_last=config.schedule.keep_versions, pinned=pinned):
            Version.objects.filter(pk=versions[number].pk).update(path="")
            remove_directories([Path(versions[number].path)])


def let_go() -> None:
    """Hold no database connection while computing or waiting."""
    if not connection.in_atomic_block:
        connection.close()


def take_lock(path: Path, should_stop: Callable[[], bool]) -> int:
    """One trainer an attempt on this machine. Waits a while for one that is ending. returns a file descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline or should_stop():
                os.close(descriptor)
                raise TrainerBusy(f"another trainer holds {path}; stop it first") from None
            time.sleep(POLL_S)


def next_step(attempt: Attempt) -> OptimizerStep | None:
    going = (OptimizerStep.State.REQUESTED, OptimizerStep.State.TRAINING)
    rows = OptimizerStep.objects.filter(attempt=attempt, kind=OptimizerStep.Kind.POLICY, state__in=going)
    return rows.select_related("attempt").order_by("number").first()


def config_of(attempt: Attempt) -> RunConfig:
    return scheduled_config(RunConfig.model_validate(attempt.config))


def base_model(config: RunConfig) -> Model:
    return Model.objects.get(name=config.model.name)


def starting_point(config: RunConfig) -> str:
    """Where the attempt's weights come from before any training."""
    if not config.model.start_from:
        return base_model(config).path
    try:
        return find_version(config.model.start_from).path
    except ExportError as error:
        raise TrainerError(str(error)) from error


def policy_terms(config: RunConfig) -> PolicyTerms:
    return PolicyTerms(
        objective=config.objective,
        temperature=config.sampling.temperature,
        constant_length=config.budgets.max_sampled_tokens,
    )


def learning_rate(config: RunConfig, step: int) -> float:
    """Of an online step, counted from 1: a rise over warmup_steps, then constant or down to a tenth at the last."""
    settings = config.optimization
    if step <= settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    share = (step - settings.warmup_steps) / max(settings.steps - settings.warmup_steps, 1)
    left = {"constant": 1.0, "linear": 1 - share, "cosine": (1 + cos(pi * share)) / 2}[settings.decay]
    return settings.learning_rate * (0.1 + 0.9 * left)


def replay(trainer: Trainer, attempt: Attempt, config: RunConfig, *, after: int) -> None:
    """Do again the steps that are done in rows but newer than the checkpoint, with the advantages they had."""
    done = OptimizerStep.objects.filter(
        attempt=attempt, kind=OptimizerStep.Kind.POLICY, state=OptimizerStep.State.DONE, number__gt=after
    )
    for step in done.order_by("number"):
        trainer.policy_step(
            load_trained(step, config),
            terms=policy_terms(config),
            learning_rate=learning_rate(config, step.number),
        )
        log.info("replayed", extra={"attempt": str(attempt.id), "step": step.number})


def remove_orphans(attempt: Attempt) -> None:
    """Files of a process that died between writing them and its transaction. Warm checkpoints have no rows."""
    files = AttemptFiles.of(attempt.id)
    kept = [Path(path) for path in Checkpoint.objects.filter(attempt=attempt).values_list("path", flat=True)]
    remove_directories(orphaned(files.root / "checkpoints", [*kept, *files.warm_checkpoints()]))
    kept = [
        Path(path) for path in Version.objects.filter(attempt=attempt).exclude(path="").values_list("path", flat=True)
    ]
    remove_directories(orphaned(files.root / "versions", kept))


@transaction.atomic
def fail_offline(attempt: Attempt, error: str) -> None:
    """A step that stands for all that comes before version 0; the controller ends the attempt with its error."""
    step, _ = OptimizerStep.objects.get_or_create(
        attempt=attempt, kind=OptimizerStep.Kind.SUPERVISED, number=1, defaults={"trains_version": 0}
    )
    fail_step(step, error)


@transaction.atomic
def fail_step(step: OptimizerStep, error: str) -> None:
    OptimizerStep.objects.filter(pk=step.pk).update(
        state=OptimizerStep.State.FAILED, error=error, ended_at=timezone.now()
    )
    record_event(step.attempt, "step_failed", f"Step {step.number} failed: {error}", RunEvent.Level.ERROR)
