"""Give the trainer its next optimizer step: B ready groups, oldest first, under the run's rule for late members.

From:  training.scheduling.attempts, when the core trains.
To:    OptimizerStep(REQUESTED) with its groups; the trainer makes it DONE and the groups EATEN in one transaction.
Holds: one step at a time; a group is in at most one step; step and groups are written together.
"""

from math import ceil

from training.config import RunConfig
from training.events import record_event
from training.metrics import save_metrics
from training.models import Attempt, Group, Member, OptimizerStep, RunEvent, Version
from training.scheduling.groups import UNSETTLED, exclude_group
from training.scheduling.leadership import Leadership

GOING_ON = (OptimizerStep.State.REQUESTED, OptimizerStep.State.TRAINING)


def current_step(attempt: Attempt) -> OptimizerStep | None:
    """The policy step that is requested or training."""
    return OptimizerStep.objects.filter(attempt=attempt, kind=OptimizerStep.Kind.POLICY, state__in=GOING_ON).first()


def failed_step(attempt: Attempt) -> OptimizerStep | None:
    return OptimizerStep.objects.filter(attempt=attempt, state=OptimizerStep.State.FAILED).first()


def due_version(attempt: Attempt, config: RunConfig) -> int:
    """The version that the steps done so far shall be published as; a last burst may be a short one."""
    mu = config.schedule.burst_steps
    return ceil(attempt.step / mu) if attempt.step == config.optimization.steps else attempt.step // mu


def steps_left_in_burst(attempt: Attempt, config: RunConfig) -> int:
    left = config.schedule.burst_steps - attempt.step % config.schedule.burst_steps
    return min(left, max(1, config.optimization.steps - attempt.step))


def waits_for_late_group(attempt: Attempt, config: RunConfig) -> Group | None:
    """With `wait`: a group in flight that would outlive its staleness bound if another step came before it."""
    if config.schedule.late_members != "wait":
        return None
    oldest = attempt.version - config.schedule.staleness
    late = Group.objects.filter(attempt=attempt, state__in=UNSETTLED, dispatched_version__lte=oldest)
    return late.order_by("index").first()


def may_request_step(attempt: Attempt, config: RunConfig) -> bool:
    """Whether the weights of the last burst are published, nothing trains, and B groups are ready."""
    if attempt.step >= config.optimization.steps or current_step(attempt) or failed_step(attempt):
        return False
    if attempt.version < due_version(attempt, config):
        return False
    if attempt.wanted not in (Attempt.Wanted.RUN, Attempt.Wanted.STOP):
        return False
    if waits_for_late_group(attempt, config):
        return False
    ready = Group.objects.filter(attempt=attempt, state=Group.State.READY, step=None).count()
    return ready >= config.tasks.groups_per_step


def request_step(leadership: Leadership, attempt: Attempt, config: RunConfig) -> OptimizerStep | None:
    """One act: the next step, where it may be requested."""
    if not may_request_step(attempt, config):
        return None
    with leadership.act(attempt.id) as current:
        groups = _take_ready(current, config) if may_request_step(current, config) else []
        if len(groups) < config.tasks.groups_per_step:
            return None
        step = OptimizerStep.objects.create(
            attempt=current,
            kind=OptimizerStep.Kind.POLICY,
            number=current.step + 1,
            trains_version=current.version,
        )
        Group.objects.filter(id__in=[group.id for group in groups]).update(step=step)
        no_signal = sum(group.no_signal for group in groups)
        text = f"Step {step.number} of {config.optimization.steps} was given {len(groups)} groups"
        text += f", {no_signal} of them without signal." if no_signal else "."
        record_event(current, "step_requested", text, step=step.number, groups=[group.index for group in groups])
        _note_seconds(current, step.number, "generation_s", _generation_s(groups))
        return step


def _generation_s(groups: list[Group]) -> float:
    """From the first dispatch of the step's groups to the last that became ready."""
    return (
        max((group.ready_at or group.created_at) for group in groups).timestamp()
        - min(group.created_at for group in groups).timestamp()
    )


def _note_seconds(attempt: Attempt, step: int, key: str, seconds: float) -> None:
    save_metrics(attempt, kind="policy", step=step, values={key: max(0.0, seconds)})


def _take_ready(attempt: Attempt, config: RunConfig) -> list[Group]:
    """The B oldest ready groups, locked against judgements; what late members make too small is excluded."""
    taken: list[Group] = []
    ready = Group.objects.select_for_update(no_key=True).filter(attempt=attempt, state=Group.State.READY, step=None)
    for group in ready.order_by("index"):
        if len(taken) == config.tasks.groups_per_step:
            break
        if config.schedule.late_members == "exclude" and not _exclude_late(attempt, group, config):
            continue
        taken.append(group)
    return taken


def _exclude_late(attempt: Attempt, group: Group, config: RunConfig) -> bool:
    """Exclude members that are staler than allowed. Returns whether the group can still be trained."""
    members = list(
        Member.objects.filter(group=group)
        .exclude(disposition=Member.Disposition.EXCLUDED)
        .select_related("rollout")
        .only("id", "slot", "rollout__oldest_version")
    )
    kept = 0
    for member in members:
        oldest = member.rollout.oldest_version
        staleness = 0 if oldest is None else attempt.version - oldest
        if staleness <= config.schedule.staleness:
            kept += 1
            continue
        reason = f"staleness {staleness} is beyond {config.schedule.staleness}"
        Member.objects.filter(pk=member.pk).update(
            disposition=Member.Disposition.EXCLUDED, reason=reason, staleness=staleness
        )
        text = f"Group {group.index}, member {member.slot} was excluded: {reason}."
        record_event(attempt, "member_excluded", text, RunEvent.Level.WARNING, group=str(group.id))
    if kept >= config.schedule.min_members:
        return True
    reason = f"only {kept} members are fresh enough; {config.schedule.min_members} are needed"
    exclude_group(attempt, group, reason)
    return False


def note_published(leadership: Leadership, attempt: Attempt) -> None:
    """One act for each version that the engines serve and the attempt does not know of yet."""
    published = Version.objects.filter(attempt=attempt, number__gt=attempt.version, published_at__isnull=False)
    for version in published.order_by("number"):
        with leadership.act(attempt.id) as current:
            if version.number != current.version + 1:
                return
            current.version = version.number
            current.save(update_fields=["version"])
            if version.publish_s is not None:
                _note_seconds(current, version.step, "publish_s", version.publish_s)
            took = f" in {version.publish_s:.1f} s" if version.publish_s is not None else ""
            record_event(
                current,
                "version_published",
                f"Version {version.number} was published{took}: engines sample from it, open calls go on.",
                version=version.number,
                step=version.step,
            )
