"""Steps whose loss or gradient is not finite: dropped, counted, shown; after three in a row the run pauses.

From:  training.trainer_process, when the trainer raised NotFinite (the weights are then as they were).
To:    rows: OptimizerStep DROPPED, members excluded with the reason, Metric `dropped_steps`, events, Attempt.wanted.
Holds: a dropped step counts as a step, its groups are eaten and its members excluded, so that nothing is trained later
       with advantages of a step that never was; a run that a person resumes pauses again at the next bad step.
"""

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from training.events import record_event
from training.metrics import save_metrics
from training.models import Attempt, Group, Member, Metric, OptimizerStep, RunEvent, Version
from training.policy_batch import PolicyBatch

MOST_IN_A_ROW = 3


@transaction.atomic
def drop_policy_step(step: OptimizerStep, batch: PolicyBatch, cause: str, *, version: Version | None) -> None:
    """The step is over without an update. version: the (unchanged) weights that a burst's end publishes."""
    attempt = Attempt.objects.select_for_update(no_key=True).get(pk=step.attempt_id)
    current = OptimizerStep.objects.select_for_update(no_key=True).get(pk=step.pk)
    if current.state != OptimizerStep.State.TRAINING:
        return
    current.state, current.error, current.ended_at = OptimizerStep.State.DROPPED, cause, timezone.now()
    current.save(update_fields=["state", "error", "ended_at"])
    members = Member.objects.filter(group__in=batch.groups)
    for member, reason in batch.excluded:
        members.filter(pk=member.pk).update(disposition=Member.Disposition.EXCLUDED, reason=reason[:200])
    members.exclude(disposition=Member.Disposition.EXCLUDED).update(
        disposition=Member.Disposition.EXCLUDED, reason="step dropped: loss or gradient not finite", hold=False
    )
    Group.objects.filter(pk__in=[group.pk for group in batch.groups]).update(state=Group.State.EATEN)
    attempt.step = step.number
    attempt.consumed_rollouts += members.values("group", "slot").distinct().count()
    attempt.save(update_fields=["step", "consumed_rollouts"])
    if version is not None:
        version.save()
    save_metrics(attempt, kind="policy", step=step.number, values={"dropped_steps": 1.0})
    note_dropped(attempt, kind="policy", number=step.number, cause=cause)


@transaction.atomic
def drop_offline_step(attempt_id: UUID, *, kind: str, number: int, cause: str) -> bool:
    """The same before version 0. returns whether the attempt pauses now."""
    attempt = Attempt.objects.select_for_update(no_key=True).get(pk=attempt_id)
    save_metrics(attempt, kind=kind, step=number, values={"dropped_steps": 1.0})
    return note_dropped(attempt, kind=kind, number=number, cause=cause)


def note_dropped(attempt: Attempt, *, kind: str, number: int, cause: str) -> bool:
    """Say it, and pause where it is the third in a row. Under the attempt's lock."""
    text = f"Step {number} ({kind}) was dropped: {cause}"
    record_event(attempt, "step_dropped", text, RunEvent.Level.WARNING, step=number, kind_of_step=kind)
    row = in_a_row(attempt, kind=kind, number=number)
    if row < MOST_IN_A_ROW or attempt.wanted != Attempt.Wanted.RUN:
        return False
    attempt.wanted = Attempt.Wanted.PAUSE
    attempt.state_reason = (
        f"Paused by itself: the last {row} steps were dropped, because {cause}. Resume tries again; a clone with a "
        "lower learning rate or optimization.precision fp32 may be needed."
    )
    attempt.save(update_fields=["wanted", "state_reason"])
    record_event(attempt, "paused_by_itself", attempt.state_reason, RunEvent.Level.ERROR, step=number)
    return True


def in_a_row(attempt: Attempt, *, kind: str, number: int) -> int:
    """How many steps up to and with `number` were dropped one after another."""
    rows = Metric.objects.filter(attempt=attempt, kind=kind, key="dropped_steps", value__gt=0, step__lte=number)
    dropped = set(rows.order_by("-step").values_list("step", flat=True)[:1000])
    count = 0
    while number - count in dropped:
        count += 1
    return count
