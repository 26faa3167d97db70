"""Say what an attempt does now, in words for people, with how far it is.

From:  training.scheduling.attempts, at the end of each round.
To:    Attempt.phase and phase_progress; a RunEvent of kind "phase" whenever the kind of phase changes, from which
       time by phase is counted; a ring for open pages.
"""

from dataclasses import dataclass, field
from uuid import UUID

from environments.models import Rollout
from training.config import RunConfig
from training.events import record_event, ring
from training.kinds import has_online_phase, metric_kind
from training.models import Attempt, Group, Member, Version
from training.scheduling.cells import core_trains, count_unfinished, some_cell_serves
from training.scheduling.demonstrations import count_demonstrations
from training.scheduling.evaluation import due_evaluation
from training.scheduling.leadership import Leadership
from training.scheduling.steps import current_step, due_version


@dataclass(frozen=True, kw_only=True)
class Phase:
    key: str
    """demonstrations, warm_start, engine_start, evaluation, generation, turning, training, publication, paused, ..."""
    text: str
    progress: dict[str, object] = field(default_factory=dict)


def note_phase(leadership: Leadership, attempt_id: UUID, config: RunConfig) -> None:
    attempt = Attempt.objects.get(pk=attempt_id)
    phase = describe(attempt, config)
    if (phase.text[:40], phase.progress) == (
        attempt.phase,
        {k: v for k, v in attempt.phase_progress.items() if k != "key"},
    ):
        return
    with leadership.act(attempt_id) as current:
        before = current.phase_progress.get("key")
        current.phase, current.phase_progress = phase.text[:40], {**phase.progress, "key": phase.key}
        current.save(update_fields=["phase", "phase_progress"])
        if before != phase.key:
            record_event(current, "phase", f"{phase.text}.", phase=phase.key, step=current.step)
    ring(attempt_id)


def describe(attempt: Attempt, config: RunConfig) -> Phase:
    if attempt.is_over:
        return Phase(key=str(attempt.state), text=str(attempt.get_state_display()).capitalize())
    if attempt.state == Attempt.State.QUEUED:
        return Phase(key="queued", text="Queued")
    if attempt.state == Attempt.State.WARMING:
        return _warming(attempt, config)
    if attempt.state == Attempt.State.PAUSED:
        return Phase(key="paused", text="Paused")
    return _online(attempt, config)


WARM_WORDS = {"rl": "Warm start", "supervised": "Supervised training", "preference": "Training on preferences"}


def _warming(attempt: Attempt, config: RunConfig) -> Phase:
    count, ended, _ = count_demonstrations(attempt)
    if ended < count:
        progress = {"done": ended, "total": count, "unit": "demonstrations"}
        return Phase(key="demonstrations", text="Collecting demonstrations", progress=progress)
    if Version.objects.filter(attempt=attempt, number=0).exists():
        return Phase(key="engine_start", text="Starting the engine with version 0")
    kind = metric_kind(config)
    rows = attempt.metrics.filter(kind=kind)
    done = rows.order_by("-step").values_list("step", flat=True).first()
    total = rows.filter(key="steps_total").values_list("value", flat=True).first()
    progress = {"done": done or 0, "total": int(total), "unit": f"{kind} steps"} if total else {}
    if attempt.wanted == Attempt.Wanted.PAUSE:
        return Phase(key="paused", text="Paused", progress=progress)
    return Phase(key="warm_start", text=WARM_WORDS.get(config.kind, "Preparing"), progress=progress)


def _online(attempt: Attempt, config: RunConfig) -> Phase:
    total = config.optimization.steps
    if step := current_step(attempt):
        return Phase(
            key="training", text=f"Step {step.number} of {total}: training", progress=step.metrics.get("progress", {})
        )
    if attempt.version < due_version(attempt, config):
        return Phase(key="publication", text=f"Publishing version {attempt.version + 1}")
    version = due_evaluation(attempt, config)
    if version:
        state = version.evaluation.get("heldout", {})
        ids = [tries[-1] for tries in state.get("rollouts", {}).values()]
        done = Rollout.objects.filter(id__in=ids, state=Rollout.State.ENDED).count()
        samples = config.evaluation.samples_per_task
        unit = "evaluation rollouts" if samples > 1 else "held-out tasks"
        progress = {"done": done, "total": config.evaluation.tasks * samples, "unit": unit}
        return Phase(key="evaluation", text=f"Evaluating version {version.number}", progress=progress)
    if not has_online_phase(config):
        return Phase(key="engine_start", text="Waiting for the engine")
    if attempt.step >= total:
        return Phase(key="ending", text="All steps are done: ending")
    if not some_cell_serves(attempt):
        word = "waiting for its batch" if core_trains(attempt) else "cells are turning"
        return Phase(key="turning", text=f"Step {attempt.step + 1} of {total}: {word}")
    return _generating(attempt, config)


def _generating(attempt: Attempt, config: RunConfig) -> Phase:
    in_flight = Group.objects.filter(attempt=attempt, state__in=(Group.State.OPEN, Group.State.READY, Group.State.HELD))
    ended = Member.objects.filter(group__in=in_flight, rollout__state=Rollout.State.ENDED)
    done = ended.exclude(disposition=Member.Disposition.EXCLUDED).count()
    needed = config.tasks.groups_per_step * config.tasks.rollouts_per_group
    progress: dict[str, object] = {"done": done, "total": needed, "unit": "rollouts"}
    step = f"Step {attempt.step + 1} of {config.optimization.steps}"
    held = in_flight.filter(state=Group.State.HELD).count()
    if attempt.state == Attempt.State.STOPPING or attempt.wanted == Attempt.Wanted.PAUSE:
        word = "Stopping" if attempt.state == Attempt.State.STOPPING else "Pausing"
        text = f"{word}: {count_unfinished(attempt)} rollouts finish"
        return Phase(key=word.lower(), text=text, progress=progress)
    if held and not in_flight.filter(state=Group.State.OPEN).exists():
        return Phase(key="review", text=f"{step}: waiting for review", progress=progress)
    return Phase(key="generation", text=f"{step}: generating", progress=progress)
