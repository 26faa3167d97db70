"""What people may do to runs: check a config, start, pause, resume, stop, cancel, judge a rollout.

From:  pages, REST, commands (gyre_web), after they checked the person's rights.
To:    rows that training.scheduling.controller reads within its next round; nothing here waits for it.
Holds: one transaction a call; a state changes by compare-and-set under the attempt's row lock; a judgement and the
       eating of a group exclude each other by the group's row lock.
Never: talks to engines, trainers or workers.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Max

from training.config import RunConfig
from training.config_checks import FieldError, check_config
from training.config_text import TomlError, config_from_toml, config_to_toml, differences, toml_to_data
from training.estimates import estimate
from training.events import record_event, ring
from training.models import Attempt, Group, Member, Run
from training.provenance import build_provenance

__all__ = [
    "FieldError",
    "InvalidTransition",
    "NameTaken",
    "TomlError",
    "apply_judgement",
    "check_config",
    "config_from_toml",
    "config_to_toml",
    "differences",
    "estimate",
    "request",
    "start_attempt",
    "start_run",
    "toml_to_data",
]


class ServiceError(Exception):
    """Refused, in words for people."""


class NameTaken(ServiceError):
    """Another run has this name."""


class InvalidTransition(ServiceError):
    """The attempt is not in a state in which this can be asked."""


def start_run(*, name: str, config: RunConfig, owner: Any = None, cloned_from: Run | None = None) -> Attempt:
    """A run and its first attempt, queued for the controller. `config` has passed check_config.

    Raises NameTaken.
    """
    try:
        with transaction.atomic():
            run = Run.objects.create(name=name, owner=owner, cloned_from=cloned_from)
            return start_attempt(run=run, config=config)
    except IntegrityError as error:
        raise NameTaken(f"There is already a run called {name!r}. Choose another name.") from error


@transaction.atomic
def start_attempt(*, run: Run, config: RunConfig) -> Attempt:
    """The run's next attempt, queued. Raises InvalidTransition while another attempt of the run goes on."""
    run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    going = next((attempt for attempt in run.attempts.all() if not attempt.is_over), None)
    if going:
        raise InvalidTransition(f"Attempt {going.number} of {run.name} is {going.state}. Stop or cancel it first.")
    number = (run.attempts.aggregate(last=Max("number"))["last"] or 0) + 1
    attempt = Attempt.objects.create(
        run=run, number=number, config=config.model_dump(mode="json"), provenance=build_provenance(), phase="Queued"
    )
    record_event(attempt, "started", f"Attempt {number} of {run.name} was started.")
    transaction.on_commit(lambda: ring(attempt.id), robust=True)
    return attempt


_MAY_FOLLOW: dict[str, frozenset[str]] = {
    Attempt.Wanted.RUN: frozenset({Attempt.Wanted.PAUSE}),
    Attempt.Wanted.PAUSE: frozenset({Attempt.Wanted.RUN}),
    Attempt.Wanted.STOP: frozenset({Attempt.Wanted.RUN, Attempt.Wanted.PAUSE}),
    Attempt.Wanted.CANCEL: frozenset({Attempt.Wanted.RUN, Attempt.Wanted.PAUSE, Attempt.Wanted.STOP}),
}
_MEANING: dict[str, str] = {
    Attempt.Wanted.RUN: "Resume was asked for: groups are dispatched again.",
    Attempt.Wanted.PAUSE: "Pause was asked for: no new groups and no new steps; what runs is finished.",
    Attempt.Wanted.STOP: "Stop was asked for: what runs is finished, then the attempt ends.",
    Attempt.Wanted.CANCEL: "Cancel was asked for: everything of the attempt ends now.",
}
_GOING: dict[str, str] = {
    Attempt.Wanted.RUN: "running",
    Attempt.Wanted.PAUSE: "paused",
    Attempt.Wanted.STOP: "being stopped",
    Attempt.Wanted.CANCEL: "being cancelled",
}
_VERB: dict[str, str] = {
    Attempt.Wanted.RUN: "resumed",
    Attempt.Wanted.PAUSE: "paused",
    Attempt.Wanted.STOP: "stopped",
    Attempt.Wanted.CANCEL: "cancelled",
}


@transaction.atomic
def request(attempt_id: UUID, wanted: Attempt.Wanted | str) -> Attempt:
    """Note what a person wants of an attempt; the controller does it. Asking for the same twice is asking once.

    Raises InvalidTransition with a sentence for people, Attempt.DoesNotExist.
    """
    wanted = Attempt.Wanted(wanted)
    attempt = Attempt.objects.select_for_update(no_key=True).get(pk=attempt_id)
    if attempt.is_over:
        raise InvalidTransition(
            f"This attempt is over ({attempt.get_state_display()}), so it cannot be {_VERB[wanted]}. "
            "Clone the run to go on."
        )
    if attempt.wanted == wanted:
        return attempt
    if attempt.wanted not in _MAY_FOLLOW[wanted]:
        raise InvalidTransition(f"This attempt is {_GOING[attempt.wanted]}, so it cannot be {_VERB[wanted]}.")
    before = attempt.wanted
    attempt.wanted = wanted
    attempt.state_reason = ""
    attempt.save(update_fields=["wanted", "state_reason"])
    record_event(attempt, f"{wanted}_requested", _MEANING[wanted], before=before)
    transaction.on_commit(lambda: ring(attempt_id), robust=True)
    return attempt


@transaction.atomic
def apply_judgement(
    *,
    rollout_id: UUID,
    reward: float | None,
    include: Member.Include | str,
    release_hold: bool,
    turn_marks: Mapping[str, bool] | None = None,
) -> str:
    """Make a person's judgement what training uses: "trains", "too_late" or "none" (review's Label.Effect).

    reward: the override; None: the verifier's number stands (also withdraws an earlier override).
    include: `keep` brings back a member that was excluded, if its slot was not refilled and there is a reward.
    release_hold: the member no longer waits for a person.
    turn_marks: node index to right or wrong, all that stand; they train where objective.turn_mark_weight is above 0.
    """
    include = Member.Include(include)
    member = Member.objects.filter(rollout_id=rollout_id).first()
    if member is None:
        return "none"
    group = Group.objects.select_for_update(no_key=True).get(pk=member.group_id)
    member = Member.objects.select_for_update(no_key=True, of=("self",)).select_related("rollout").get(pk=member.pk)
    if group.state == Group.State.EATEN or group.step_id is not None:
        return "too_late"
    if group.state == Group.State.EXCLUDED:
        return "none"
    marks = dict(turn_marks or {})
    weighs_turns = group.attempt.config.get("objective", {}).get("turn_mark_weight", 0.0) > 0
    judged = reward is not None or include != Member.Include.AS_SCORED or bool(marks and weighs_turns)
    changed = (member.effective_reward, member.include) != (reward, include)
    changed |= weighs_turns and member.turn_marks != marks
    member.effective_reward, member.include, member.turn_marks = reward, include, marks
    if release_hold:
        changed |= member.hold
        member.hold = False
        if member.disposition == Member.Disposition.HELD:
            member.disposition = Member.Disposition.PENDING
            member.reason = ""
    if member.disposition == Member.Disposition.EXCLUDED and not _may_return(member, group):
        member.save(update_fields=["effective_reward", "include", "turn_marks", "hold"])
        return "none"
    if member.disposition == Member.Disposition.EXCLUDED:
        member.disposition, member.reason = Member.Disposition.PENDING, ""
    member.save(update_fields=["effective_reward", "include", "turn_marks", "hold", "disposition", "reason"])
    _reopen(group)
    transaction.on_commit(lambda: ring(group.attempt_id), robust=True)
    return "trains" if judged or changed else "none"


def _may_return(member: Member, group: Group) -> bool:
    """Whether an excluded member can be trained after all, now that a person judged it."""
    refilled = group.members.filter(slot=member.slot, refill__gt=member.refill).exists()
    kept = member.include == Member.Include.KEEP or member.effective_reward is not None
    return kept and member.include != Member.Include.DROP and member.reward is not None and not refilled


def _reopen(group: Group) -> None:
    """Let the controller settle the group again with what is now known."""
    if group.state in (Group.State.READY, Group.State.HELD):
        group.state, group.reason, group.ready_at = Group.State.OPEN, "", None
        group.save(update_fields=["state", "reason", "ready_at"])
