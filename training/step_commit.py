"""What an optimizer step leaves in rows, all of it or nothing: members, groups, metrics, version, counters, events.

From:  training.trainer_process, after the step was taken and its version's files are durable.
To:    one transaction.
Holds: a step is committed once, whoever else tries; of a member only training's own fields are written, because people
       may edit the others meanwhile; every member has a disposition and, where it did not train, a reason.
"""

from typing import Any

from django.db import transaction
from django.utils import timezone

from training.delivery import load_delivery
from training.events import record_event
from training.metrics import batch_metrics, save_metrics
from training.models import Attempt, Group, Member, Metric, OptimizerStep, RunEvent, Version
from training.policy_batch import BatchMember, PolicyBatch
from training.token_stats import encode_token_stats
from training.trainer import StepReport


class TrainerBusy(Exception):
    """Another trainer process has this attempt."""


@transaction.atomic
def commit_step(
    step: OptimizerStep,
    batch: PolicyBatch,
    report: StepReport,
    *,
    metrics: dict[str, float],
    version: Version | None,
) -> None:
    """Everything that the step changes in rows. A second commit of the same step finds it DONE and raises."""
    attempt = Attempt.objects.select_for_update(no_key=True).get(pk=step.attempt_id)
    current = OptimizerStep.objects.select_for_update(no_key=True).get(pk=step.pk)
    if current.state != OptimizerStep.State.TRAINING or attempt.step != step.number - 1:
        raise TrainerBusy(f"step {step.number} was committed by another trainer")
    save_members(batch, report)
    Group.objects.filter(pk__in=[group.pk for group in batch.groups]).update(state=Group.State.EATEN, no_signal=False)
    Group.objects.filter(pk__in=batch.no_signal).update(no_signal=True)
    values = {**batch_metrics(batch, labels=labels_of(batch)), **metrics, **speed_of(step, batch)}
    save_metrics(attempt, kind="policy", step=step.number, values=values)
    current.state, current.metrics, current.ended_at = OptimizerStep.State.DONE, values, timezone.now()
    current.save(update_fields=["state", "metrics", "ended_at"])
    attempt.step = step.number
    attempt.consumed_rollouts += len({(m.group_id, m.slot) for m in all_members(batch)})
    attempt.save(update_fields=["step", "consumed_rollouts"])
    if version is not None:
        version.save()
    note_delivery(attempt, step.number)
    record_event(attempt, "step_done", describe_step(step, batch, values), step=step.number)
    if len(batch.no_signal) == len(batch.groups):
        record_event(attempt, "no_signal", describe_silence(step, values), RunEvent.Level.WARNING, step=step.number)


def all_members(batch: PolicyBatch) -> list[Member]:
    return [each.member for each in batch.members] + [member for member, _ in batch.excluded]


def labels_of(batch: PolicyBatch) -> dict[str, dict[int, str]]:
    """Family, task set and harness of each member's rollout."""
    fields = ("pk", "group__task__family", "group__task__taskset__name", "rollout__harness__name")
    rows = Member.objects.filter(pk__in=[each.member.pk for each in batch.members]).values_list(*fields)
    found: dict[str, dict[int, str]] = {"": {}, "taskset": {}, "harness": {}}
    for pk, family, taskset, harness in rows:
        found[""][pk], found["taskset"][pk], found["harness"][pk] = family, taskset, harness
    return found


def speed_of(step: OptimizerStep, batch: PolicyBatch) -> dict[str, float]:
    """Sampled tokens a second while the step's groups were made, where the controller noted the time."""
    row = Metric.objects.filter(attempt=step.attempt_id, kind="policy", step=step.number, key="generation_s").first()
    if row is None or row.value <= 0:
        return {}
    tokens = sum(member.rollout.sampled_tokens for member in all_members(batch))
    return {"generated_tokens_per_s": tokens / row.value}


def note_delivery(attempt: Attempt, number: int) -> None:
    """After the step's members are written: what share of everything so far was trained."""
    account = load_delivery(attempt)
    line = account.delivered
    shares = {
        "delivered_rollouts": line.rollouts / account.rollouts if line and account.rollouts else 0.0,
        "delivered_tokens": line.tokens / account.tokens if line and account.tokens else 0.0,
    }
    save_metrics(attempt, kind="policy", step=number, values=shares)


def save_members(batch: PolicyBatch, report: StepReport) -> None:
    """Advantage, disposition and token stats of each member. Only our own fields: people may edit the others."""
    place = 0
    changed: list[Member] = []
    for each in batch.members:
        count = len(each.selection.samples)
        changed.append(trained_member(each, batch, report.trainer_logprobs[place : place + count]))
        place += count
    for member, reason in batch.excluded:
        member.disposition, member.reason = Member.Disposition.EXCLUDED, reason[:200]
        changed.append(member)
    fields = ["disposition", "reason", "advantage", "staleness", "trained_tokens", "num_samples", "token_stats"]
    Member.objects.bulk_update(changed, fields, batch_size=100)


def trained_member(each: BatchMember, batch: PolicyBatch, logprobs: list[Any]) -> Member:
    member = each.member
    member.disposition = Member.Disposition.TRAINED
    member.advantage, member.staleness = each.advantage, each.staleness
    member.num_samples, member.trained_tokens = len(each.selection.samples), each.trained_tokens
    member.reason = ""
    if each.masked:
        member.reason = "masked: it ended at a limit (objective.overlong); it counts in its group's baseline"
    elif not each.selection.samples:
        member.reason = "no token that a policy loss may train"
    elif member.group_id in batch.no_signal and not any(credit.any() for credit in each.rollout.advantages):
        member.reason = "no signal: all rewards of its group are equal"
    member.token_stats = encode_token_stats(each.selection.samples, logprobs, each.rollout.advantages)
    return member


def describe_step(step: OptimizerStep, batch: PolicyBatch, values: dict[str, float]) -> str:
    text = f"Step {step.number} was trained on {len(batch.members)} rollouts: mean reward {values['reward_mean']:.2f}"
    if batch.no_signal:
        text += f", {len(batch.no_signal)} of {len(batch.groups)} groups without signal"
    if batch.excluded:
        text += f", {len(batch.excluded)} members excluded"
    return text + f", {values['train_s']:.0f} s."


def describe_silence(step: OptimizerStep, values: dict[str, float]) -> str:
    return (
        f"Step {step.number} had nothing to learn from: within each of its groups all rewards are equal (mean "
        f"{values['reward_mean']:.2f}). Where this lasts, read a rollout: tasks that are always or never solved want other "
        "tasks or tasks.curriculum = learnability; a policy that fails everywhere after it was better wants an earlier "
        "version, a lower optimization.learning_rate or an objective.kl_coefficient."
    )
