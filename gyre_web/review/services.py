"""Save a person's judgement of a rollout, and bring it into training.

From:  gyre_web.review.views (browser), gyre_web.api.
To:    Label rows, training.services.apply_judgement, the audit trail: in one transaction.
Holds: a save that the browser sends again (same client_key) is one label; a label is never changed, a later one of the
       same person supersedes it; what training will do with it is decided under the group's lock and shown.
Never: computes rewards; touches Member rows itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Count, Q
from django.utils import timezone

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.review.models import Label, Queue, Reservation
from gyre_web.review.selectors import queue_rollouts
from gyre_web.runs.models import SavedFilter
from training.models import Member
from training.services import apply_judgement

MAX_TEXT_CHARS = 20_000
INCLUDE = {
    Label.Keep.UNSET: Member.Include.AS_SCORED,
    Label.Keep.KEEP: Member.Include.KEEP,
    Label.Keep.DROP: Member.Include.DROP,
}


@dataclass(frozen=True, kw_only=True)
class LabelError:
    field: str
    message: str


class InvalidLabel(ValueError):
    """Everything that is wrong with a judgement, by field."""

    def __init__(self, errors: list[LabelError]) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = errors


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one person says of one rollout. `client_key` is new for each judgement and makes a repeated save harmless."""

    client_key: str
    verdict: str = ""
    keep: str = Label.Keep.UNSET
    reward: float | None = None
    reason: str = ""
    note: str = ""
    turns: Mapping[str, bool] = field(default_factory=dict)
    """Marks on single turns: node index -> right or wrong."""


def check_turns(rollout: Rollout, turns: Mapping[str, bool]) -> list[LabelError]:
    """Marks are on turns that the model sampled."""
    if not turns:
        return []
    if not all(key.isascii() and key.isdigit() and isinstance(mark, bool) for key, mark in turns.items()):
        return [LabelError(field="turns", message="Must be node indexes with true or false.")]
    known = set(rollout.nodes.filter(sampled=True).values_list("index", flat=True))
    odd = sorted({int(key) for key in turns} - known)
    return [LabelError(field="turns", message=f"Node {odd[0]} is no turn of this rollout.")] if odd else []


def check_judgement(judgement: Judgement) -> list[LabelError]:
    """Every fault of a judgement at once."""
    errors = []
    if judgement.verdict not in ("", *Label.Verdict.values):
        errors.append(LabelError(field="verdict", message=f"Use one of {', '.join(Label.Verdict.values)}, or none."))
    if judgement.keep not in Label.Keep.values:
        errors.append(LabelError(field="keep", message=f"Use one of {', '.join(Label.Keep.values)}."))
    overrides = judgement.reward is not None
    if judgement.reward is not None and not math.isfinite(judgement.reward):
        errors.append(LabelError(field="reward", message="Must be a finite number, or empty."))
    if (overrides or judgement.keep == Label.Keep.DROP) and not judgement.reason.strip():
        errors.append(LabelError(field="reason", message="Say why: an override or a drop changes what is trained."))
    for name, text in (("reason", judgement.reason), ("note", judgement.note)):
        if len(text) > MAX_TEXT_CHARS or "\x00" in text:
            errors.append(LabelError(field=name, message=f"At most {MAX_TEXT_CHARS} characters, without NUL."))
    if not 8 <= len(judgement.client_key) <= 40:
        errors.append(LabelError(field="client_key", message="Must have 8 to 40 characters, new for each judgement."))
    says = judgement.verdict or judgement.keep != Label.Keep.UNSET or overrides or judgement.note.strip()
    if not (says or judgement.turns):
        errors.append(
            LabelError(field="verdict", message="Say something: a verdict, keep or drop, a reward, or a note.")
        )
    return errors


def save_label(*, rollout: Rollout, author: User, judgement: Judgement) -> Label:
    """The stored label, with its effect on training. Raises InvalidLabel. Idempotent by the judgement's `client_key`."""
    if errors := check_judgement(judgement) + check_turns(rollout, judgement.turns):
        raise InvalidLabel(errors)
    try:
        with transaction.atomic():
            return _add_label(rollout, author, judgement)
    except IntegrityError:
        earlier = Label.objects.filter(client_key=judgement.client_key, author=author, rollout=rollout).first()
        if earlier is None:
            raise InvalidLabel([LabelError(field="client_key", message="Was used for another judgement.")]) from None
        return earlier


def _add_label(rollout: Rollout, author: User, judgement: Judgement) -> Label:
    label = Label.objects.create(
        rollout=rollout, author=author, author_name=author.username, verdict=judgement.verdict, keep=judgement.keep,
        reward=judgement.reward, reason=judgement.reason.strip(), note=judgement.note.strip(),
        client_key=judgement.client_key, turns=dict(judgement.turns),
    )  # fmt: skip
    earlier = Label.objects.filter(rollout=rollout, author=author, superseded_by=None).exclude(pk=label.pk)
    before = [label_values(one) for one in earlier]
    earlier.update(superseded_by=label)
    label.effect = apply_judgement(
        rollout_id=rollout.pk,
        reward=label.reward,
        include=INCLUDE[Label.Keep(label.keep)],
        release_hold=True,
        turn_marks=label.turns,
    )
    label.save(update_fields=["effect"])
    open_items = Reservation.objects.filter(rollout=rollout, reviewer=author, done_at=None)
    open_items.update(done_at=timezone.now(), skipped_at=None)
    record(
        author, "label.save", rollout,
        before=before[-1] if before else None, after=label_values(label), reason=label.reason,
    )  # fmt: skip
    return label


def label_values(label: Label) -> dict[str, object]:
    names = ("verdict", "keep", "reward", "note", "turns", "effect")
    return {name: getattr(label, name) for name in names}


@transaction.atomic
def create_queue(
    *, name: str, saved_filter: SavedFilter, author: User, reviewers_per_item: int = 1, reservation_minutes: int = 15
) -> Queue:
    queue = Queue.objects.create(
        name=name, filter=saved_filter, created_by=author, reviewers_per_item=reviewers_per_item,
        reservation_minutes=reservation_minutes,
    )  # fmt: skip
    record(author, "queue.create", queue, after={"name": name, "filter": saved_filter.name})
    return queue


@transaction.atomic
def reserve_next(*, queue: Queue, reviewer: User) -> Reservation | None:
    """The item on this reviewer's screen: the one they hold, else the first that still needs a reviewer.

    The queue's row lock makes two reviewers wait for each other for a moment, so nobody is given the same item.
    """
    queue = Queue.objects.select_for_update().select_related("filter").get(pk=queue.pk)
    now = timezone.now()
    mine = queue.reservations.filter(reviewer=reviewer)
    held = mine.filter(done_at=None, skipped_at=None, expires_at__gt=now).select_related("rollout").first()
    if held:
        held.expires_at = now + timedelta(minutes=queue.reservation_minutes)
        held.save(update_fields=["expires_at"])
        return held
    busy = Q(reservation__queue=queue) & (
        Q(reservation__done_at__isnull=False) | Q(reservation__skipped_at=None, reservation__expires_at__gt=now)
    )
    seen = mine.exclude(done_at=None, skipped_at=None).values("rollout")
    free = (
        queue_rollouts(queue)
        .exclude(pk__in=seen)
        .annotate(reviewers=Count("reservation", filter=busy, distinct=True))
        .filter(reviewers__lt=queue.reviewers_per_item)
        .order_by("created_at", "pk")
    )
    rollout = free.first()
    if rollout is None:
        return None
    reservation, _ = Reservation.objects.update_or_create(
        queue=queue, rollout=rollout, reviewer=reviewer,
        defaults={"expires_at": now + timedelta(minutes=queue.reservation_minutes), "done_at": None, "skipped_at": None},
    )  # fmt: skip
    return reservation


def skip_item(*, queue: Queue, rollout_id: UUID, reviewer: User) -> None:
    """It is not offered to this reviewer again; others may take it. A judged item stays judged."""
    item = Reservation.objects.filter(queue=queue, rollout_id=rollout_id, reviewer=reviewer, done_at=None)
    item.update(skipped_at=timezone.now())


@transaction.atomic
def close_queue(*, queue: Queue, author: User) -> None:
    """Takes it off the list; labels and reservations stay."""
    Queue.objects.filter(pk=queue.pk, closed_at=None).update(closed_at=timezone.now())
    record(author, "queue.close", queue)
