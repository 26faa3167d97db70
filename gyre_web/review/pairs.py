"""Judge pairs: which of two rollouts is better, by whom and why. What DPO runs and exports learn from.

From:  the compare page, REST.
To:    PairPreference rows, the audit trail.
Holds: a pair is stored in one order whatever the screen's; a save that is sent again (same client_key) is one
       judgement; a later one of the same person supersedes it; where people disagree the pair is not trained.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Count, Q

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.review.models import PairPreference
from gyre_web.review.services import MAX_TEXT_CHARS, InvalidLabel, LabelError
from training.models import Group

CHOICES = ("a", "b", "tie", "neither")
MOST_GROUPS = 200


def check_preference(*, a: Rollout, b: Rollout, choice: str, reason: str, client_key: str) -> list[LabelError]:
    """Every fault at once."""
    errors = []
    if a.pk == b.pk:
        errors.append(LabelError(field="b", message="Choose two different rollouts."))
    elif a.task_id != b.task_id:
        errors.append(LabelError(field="b", message="Only rollouts of the same task can be preferred over each other."))
    for name, rollout in (("a", a), ("b", b)):
        if rollout.is_live:
            errors.append(LabelError(field=name, message="It is still going on; judge it when it has ended."))
    if choice not in CHOICES:
        errors.append(LabelError(field="choice", message=f"Use one of {', '.join(CHOICES)}."))
    if len(reason) > MAX_TEXT_CHARS or "\x00" in reason:
        errors.append(LabelError(field="reason", message=f"At most {MAX_TEXT_CHARS} characters, without NUL."))
    if not 8 <= len(client_key) <= 40:
        errors.append(LabelError(field="client_key", message="Must have 8 to 40 characters, new for each judgement."))
    return errors


def save_preference(
    *, a: Rollout, b: Rollout, author: User, choice: str, reason: str = "", client_key: str
) -> PairPreference:
    """choice: a, b, tie or neither (both bad). Raises InvalidLabel. Idempotent by client_key."""
    errors = check_preference(a=a, b=b, choice=choice, reason=reason, client_key=client_key)
    if errors:
        raise InvalidLabel(errors)
    first, second, chosen = (a, b, choice) if a.pk < b.pk else (b, a, {"a": "b", "b": "a"}.get(choice, choice))
    try:
        with transaction.atomic():
            row = PairPreference.objects.create(
                first=first, second=second, choice=STORED[chosen], author=author, author_name=author.username,
                reason=reason.strip(), client_key=client_key,
            )  # fmt: skip
            earlier = PairPreference.objects.filter(first=first, second=second, author=author, superseded_by=None)
            before = earlier.exclude(pk=row.pk).first()
            earlier.exclude(pk=row.pk).update(superseded_by=row)
            record(
                author, "pair.judge", row, before={"choice": before.choice} if before else None,
                after={"first": str(first.pk), "second": str(second.pk), "choice": row.choice}, reason=reason,
            )  # fmt: skip
            return row
    except IntegrityError:
        stored = PairPreference.objects.filter(client_key=client_key, author=author).first()
        if stored is None or {stored.first_id, stored.second_id} != {a.pk, b.pk}:
            raise InvalidLabel([LabelError(field="client_key", message="Was used for another judgement.")]) from None
        return stored


STORED = {
    "a": PairPreference.Choice.FIRST,
    "b": PairPreference.Choice.SECOND,
    "tie": PairPreference.Choice.TIE,
    "neither": PairPreference.Choice.NEITHER,
}


def describe_preferences(a: Rollout, b: Rollout) -> list[dict[str, Any]]:
    """Judgements of this pair as the screen shows it, newest first, superseded ones marked."""
    rows = PairPreference.objects.filter(Q(first=a, second=b) | Q(first=b, second=a)).order_by("-created_at")
    return [describe_preference(row, swapped=row.first_id == b.pk) for row in rows]


def describe_preference(row: PairPreference, *, swapped: bool = False) -> dict[str, Any]:
    plain = {PairPreference.Choice.FIRST: "a", PairPreference.Choice.SECOND: "b"}
    choice = plain.get(PairPreference.Choice(row.choice), str(row.choice))
    if swapped:
        choice = {"a": "b", "b": "a"}.get(choice, choice)
    return {
        "id": str(row.pk),
        "choice": choice,
        "author": row.author_name,
        "reason": row.reason,
        "created_at": row.created_at,
        "superseded": row.superseded_by_id is not None,
    }


@dataclass(frozen=True, kw_only=True)
class JudgedPair:
    """What people agree on."""

    chosen: UUID
    rejected: UUID
    judged_by: list[str]
    reason: str
    judged_at: datetime


def agreed_pairs(*, run_id: UUID | None = None, author: str = "") -> tuple[list[JudgedPair], dict[str, int]]:
    """Pairs with a winner that nobody's standing judgement contradicts; and how many are left out, by reason."""
    rows = PairPreference.objects.filter(superseded_by=None).order_by("created_at")
    if run_id is not None:
        rows = rows.filter(first__member__group__attempt__run_id=run_id)
    if author:
        rows = rows.filter(author_name=author)
    grouped: dict[tuple[UUID, UUID], list[PairPreference]] = defaultdict(list)
    for row in rows:
        grouped[row.first_id, row.second_id].append(row)
    found: list[JudgedPair] = []
    left_out: dict[str, int] = defaultdict(int)
    for (first, second), judgements in grouped.items():
        winners = {row.choice for row in judgements}
        if winners not in ({PairPreference.Choice.FIRST}, {PairPreference.Choice.SECOND}):
            left_out["people disagree" if len(winners) > 1 else "tie or neither"] += 1
            continue
        better, worse = (first, second) if winners == {PairPreference.Choice.FIRST} else (second, first)
        found.append(
            JudgedPair(
                chosen=better, rejected=worse, judged_by=[row.author_name for row in judgements],
                reason="; ".join(row.reason for row in judgements if row.reason), judged_at=judgements[-1].created_at,
            )
        )  # fmt: skip
    return found, dict(left_out)


def next_pair(*, reviewer: User, run_id: UUID | None = None) -> tuple[UUID, UUID] | None:
    """Two rollouts of one group that this person has not judged: a best and a worst by reward first, since a pair that
    the verifier already tells apart is the surest; then any two."""
    groups = Group.objects.annotate(
        ended=Count("members", filter=Q(members__rollout__state=Rollout.State.ENDED))
    ).filter(ended__gte=2)
    if run_id is not None:
        groups = groups.filter(attempt__run_id=run_id)
    judged = {
        frozenset(pair) for pair in PairPreference.objects.filter(author=reviewer).values_list("first_id", "second_id")
    }
    for group in groups.order_by("-created_at")[:MOST_GROUPS]:
        pair = first_unjudged(ordered(group), judged)
        if pair:
            return pair
    return None


def ordered(group: Group) -> list[UUID]:
    """Ended rollouts, highest reward first."""
    members = group.members.select_related("rollout").filter(
        rollout__state=Rollout.State.ENDED, rollout__sampled_tokens__gt=0
    )
    best = sorted(members, key=lambda member: (-(member.reward or 0.0), member.slot))
    return [member.rollout_id for member in best]


def first_unjudged(rollouts: list[UUID], judged: Iterable[frozenset[UUID]]) -> tuple[UUID, UUID] | None:
    known = set(judged)
    for distance in range(len(rollouts) - 1, 0, -1):
        for start in range(len(rollouts) - distance):
            pair = rollouts[start], rollouts[start + distance]
            if frozenset(pair) not in known:
                return pair
    return None
