"""Move one attempt on by whatever can be done now. Each round starts from the rows alone.

From:  training.scheduling.controller, every half second for every attempt that is not over.
To:    the acts of demonstrations, dispatch, groups, steps, evaluation and cells.

    QUEUED -> WARMING   cells and demonstrations exist        waits for: nothing
    WARMING -> RUNNING  version 0 is served                   waits for: demonstrations, warm start, engine
    WARMING -> COMPLETED  version 0 is written                a kind that trains before serving, without evaluation
    RUNNING             evaluate v0; then per step: groups -> ready -> core trains -> step done -> published
    RUNNING <-> PAUSED  asked for; nothing runs               unblocked by: resume
    RUNNING -> STOPPING -> STOPPED   asked for; nothing runs, no batch is left
    any -> CANCELLED, FAILED          at once; what still runs is told to end by `end_what_is_over`
    RUNNING -> COMPLETED              all steps done, the last version published and evaluated
"""

from dataclasses import dataclass, field
from uuid import UUID

from django.utils import timezone

from environments.models import Harness, Model, Rollout
from environments.rollouts import request_cancel
from training.config import RunConfig
from training.config_checks import find_version
from training.events import record_event
from training.kinds import has_online_phase, scheduled_config, trains_before_serving
from training.models import Attempt, Cell, Group, Member, OptimizerStep, RunEvent, Version
from training.scheduling.cells import (
    broken_cell,
    core_trains,
    count_unfinished,
    create_cells,
    give_orders,
    load_situation,
    some_cell_serves,
)
from training.scheduling.demonstrations import count_demonstrations, end_expert, start_warming
from training.scheduling.dispatch import Cast, NextTask, dispatch_groups, load_cast, load_next_task
from training.scheduling.evaluation import advance_evaluation, due_evaluation
from training.scheduling.groups import IN_FLIGHT, settle_groups
from training.scheduling.leadership import Leadership
from training.scheduling.phases import note_phase
from training.scheduling.steps import GOING_ON, current_step, due_version, failed_step, note_published, request_step


@dataclass(kw_only=True)
class Memory:
    """What a controller keeps of an attempt between rounds: only what follows from the immutable config."""

    config: RunConfig
    """As training.kinds.scheduled_config gives it."""
    _next_task: NextTask | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.config = scheduled_config(self.config)

    @property
    def next_task(self) -> NextTask:
        if self._next_task is None:
            self._next_task = load_next_task(self.config)
        return self._next_task


def advance(leadership: Leadership, attempt_id: UUID, memory: Memory) -> None:
    """One round of one attempt. Raises Fenced when another controller leads."""
    attempt = Attempt.objects.get(pk=attempt_id)
    config = memory.config
    if attempt.wanted == Attempt.Wanted.CANCEL:
        end_attempt(leadership, attempt, Attempt.State.CANCELLED, "cancelled on request")
    elif attempt.wanted == Attempt.Wanted.STOP and attempt.state in (Attempt.State.QUEUED, Attempt.State.WARMING):
        end_attempt(leadership, attempt, Attempt.State.STOPPED, "stopped before the first group")
    elif why := _failure(attempt, config):
        end_attempt(leadership, attempt, Attempt.State.FAILED, why)
    elif attempt.state == Attempt.State.QUEUED:
        _begin(leadership, load_cast(attempt, config))
    elif attempt.state == Attempt.State.WARMING:
        _warm(leadership, attempt, config)
    else:
        _go_on(leadership, attempt, memory)
    note_phase(leadership, attempt_id, config)


def _failure(attempt: Attempt, config: RunConfig) -> str:
    """Why the attempt cannot go on, in words for people; empty if it can."""
    if attempt.state == Attempt.State.QUEUED:
        if not Model.objects.filter(name=config.model.name).exists():
            return f"The model {config.model.name} is not in the catalog any more."
        if not Harness.objects.filter(name=config.harness.name).exists():
            return f"The harness {config.harness.name} is not in the catalog any more."
        if config.kind == "evaluation" and not starting_directory(config):
            return f"The version {config.model.start_from} has no weights on disk any more."
    if step := failed_step(attempt):
        return f"The {step.kind} step {step.number} failed: {step.error or 'the trainer gave no reason'}"
    if cell := broken_cell(attempt):
        return f"Cell {cell.index} gave up: {cell.reason or 'no reason was given'}"
    if attempt.state == Attempt.State.WARMING:
        count, ended, solved = count_demonstrations(attempt)
        if count and ended == count and not solved:
            return "No demonstration solved its task, so there is nothing to imitate. Look at one to see why."
    return ""


def _begin(leadership: Leadership, cast: Cast) -> None:
    if cast.attempt.started_at is None:
        with leadership.act(cast.attempt.id) as attempt:
            create_cells(attempt, cast.config, leadership.epoch)
            if not trains_before_serving(cast.config):
                _take_version_0(attempt, cast.config)
            attempt.started_at = timezone.now()
            attempt.save(update_fields=["started_at"])
    start_warming(leadership, cast)


def starting_directory(config: RunConfig) -> str:
    """Where the weights are that the attempt starts from; empty where they are gone."""
    if config.model.start_from:
        version = find_version(config.model.start_from)
        return version.path if version else ""
    model = Model.objects.get(name=config.model.name)
    return str(model.settings.get("directory") or model.path)


def _take_version_0(attempt: Attempt, config: RunConfig) -> None:
    """Version 0 is what is measured, where it lies. A version of another run is pinned, so that it stays meanwhile."""
    Version.objects.create(attempt=attempt, number=0, path=starting_directory(config))
    source = find_version(config.model.start_from) if config.model.start_from else None
    if source is not None and not source.pinned:
        Version.objects.filter(pk=source.pk).update(pinned=True)
        text = f"{config.model.start_from} is pinned: its weights stay on disk."
        record_event(attempt, "version_pinned", text, version=source.number)


def _warm(leadership: Leadership, attempt: Attempt, config: RunConfig) -> None:
    """Wait for version 0: the trainer makes it, the cell's job serves it."""
    written = Version.objects.filter(attempt=attempt, number=0).exists()
    if written and not has_online_phase(config) and config.evaluation.tasks == 0:
        end_attempt(leadership, attempt, Attempt.State.COMPLETED, "")
        return
    if Version.objects.filter(attempt=attempt, number=0, published_at__isnull=False).exists():
        with leadership.act(attempt.id) as current:
            current.state = Attempt.State.RUNNING
            current.save(update_fields=["state"])
            follows = "The online phase begins." if has_online_phase(config) else "It is evaluated."
            record_event(current, "version_published", f"Version 0 is served. {follows}", version=0)
        return
    give_orders(leadership, attempt, config)


def _go_on(leadership: Leadership, attempt: Attempt, memory: Memory) -> None:
    config = memory.config
    note_published(leadership, attempt)
    settle_groups(leadership, attempt, config, timezone.now())
    attempt.refresh_from_db()
    _follow_wishes(leadership, attempt, config)
    attempt.refresh_from_db()
    if attempt.is_over:
        return
    evaluated = due_evaluation(attempt, config)
    if evaluated and attempt.wanted != Attempt.Wanted.STOP and not _trains(attempt):
        advance_evaluation(leadership, load_cast(attempt, config), evaluated.number)
    elif _is_complete(attempt, config) and not evaluated:
        end_attempt(leadership, attempt, Attempt.State.COMPLETED, "")
        return
    else:
        if core_trains(attempt):
            request_step(leadership, attempt, config)
        if attempt.wanted == Attempt.Wanted.RUN and some_cell_serves(attempt):
            dispatch_groups(leadership, load_cast(attempt, config), memory.next_task)
    give_orders(leadership, attempt, config)


def _trains(attempt: Attempt) -> bool:
    return current_step(attempt) is not None


def _is_complete(attempt: Attempt, config: RunConfig) -> bool:
    return attempt.step >= config.optimization.steps and attempt.version >= due_version(attempt, config)


def _follow_wishes(leadership: Leadership, attempt: Attempt, config: RunConfig) -> None:
    """Paused once nothing runs; stopping at once, stopped once nothing runs and no batch is left."""
    state = attempt.state
    if attempt.wanted == Attempt.Wanted.STOP:
        state = Attempt.State.STOPPING
        if _is_quiet(attempt, config) and not _has_batch(attempt, config):
            end_attempt(leadership, attempt, Attempt.State.STOPPED, "stopped on request; what ran was finished")
            return
    elif attempt.wanted == Attempt.Wanted.PAUSE:
        state = Attempt.State.PAUSED if _is_quiet(attempt, config) else Attempt.State.RUNNING
    elif attempt.wanted == Attempt.Wanted.RUN:
        state = Attempt.State.RUNNING
    if state == attempt.state:
        return
    with leadership.act(attempt.id) as current:
        current.state = state
        current.save(update_fields=["state"])
        record_event(current, str(state), f"The attempt is {current.get_state_display()}.")


def _is_quiet(attempt: Attempt, config: RunConfig) -> bool:
    published = attempt.version >= due_version(attempt, config)
    return published and not _trains(attempt) and count_unfinished(attempt) == 0


def _has_batch(attempt: Attempt, config: RunConfig) -> bool:
    now = load_situation(attempt, config)
    return now.ready_groups >= now.groups_per_step


def end_attempt(leadership: Leadership, attempt: Attempt, state: Attempt.State, reason: str) -> None:
    """One act: the state, and a reason for everything that will not be trained. Orders the cells down."""
    with leadership.act(attempt.id) as current:
        if current.is_over:
            return
        why = f"the attempt {state}" if state == Attempt.State.FAILED else f"the attempt was {state}"
        groups = Group.objects.filter(attempt=current, state__in=IN_FLIGHT)
        Member.objects.filter(
            group__in=groups, disposition__in=(Member.Disposition.PENDING, Member.Disposition.HELD)
        ).update(disposition=Member.Disposition.EXCLUDED, reason=why, hold=False)
        groups.update(state=Group.State.EXCLUDED, reason=why)
        OptimizerStep.objects.filter(attempt=current, state__in=GOING_ON).update(
            state=OptimizerStep.State.FAILED, error=why, ended_at=timezone.now()
        )
        Cell.objects.filter(attempt=current).update(wanted_role=Cell.Role.DOWN, order_epoch=leadership.epoch)
        end_expert(current)
        current.state, current.state_reason, current.ended_at = state, reason, timezone.now()
        current.save(update_fields=["state", "state_reason", "ended_at"])
        level = RunEvent.Level.ERROR if state == Attempt.State.FAILED else RunEvent.Level.INFO
        text = f"The attempt is {current.get_state_display()}." + (f" {reason}" if reason else "")
        record_event(current, str(state), text.strip(), level)


def end_what_is_over() -> None:
    """Tell rollouts to end whose attempt is over. Rollouts that nobody waits for any more would hold their sandboxes."""
    running = (
        Rollout.objects.exclude(state=Rollout.State.ENDED)
        .filter(pool__startswith="attempt-", cancel_requested_at=None)
        .values_list("id", "pool")
    )
    by_attempt: dict[UUID, list[UUID]] = {}
    for rollout_id, pool in running:
        by_attempt.setdefault(_attempt_of(pool), []).append(rollout_id)
    over = Attempt.objects.filter(id__in=by_attempt, ended_at__isnull=False).values_list("id", flat=True)
    for attempt_id in over:
        for rollout_id in by_attempt[attempt_id]:
            request_cancel(rollout_id)


def _attempt_of(pool: str) -> UUID:
    return UUID(pool.removeprefix("attempt-").removesuffix("-expert"))
