"""What share of the rollouts and of the sampled tokens reached training, and why the rest did not. It adds up, always.

From:  Member rows with their rollouts.
To:    the run page, REST, `training.metrics`.
Holds: every rollout dispatched for training is in exactly one line, and so is every token it sampled; the lines'
       numbers sum to the totals, and the percentages shown sum to 100.0.

Worked example: three rollouts of 100 sampled tokens each; one trained 90 of its tokens, one was excluded (verifier
error), one still runs. Lines: trained 1 / 90; context only, in trained rollouts 0 / 10; verifier error 1 / 100; still
on its way 1 / 100.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q, Sum
from django.db.models.functions import Greatest

from training.models import Attempt, Member

TRAINED = "trained"
NO_SIGNAL = "trained without signal (equal rewards in its group)"
NO_TOKEN = "nothing in it that a policy loss may train"
REST = "not in a sample of a trained rollout (side or aborted calls, beyond J_max)"
ON_ITS_WAY = "still on its way"
HELD = "held for review"


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of one rollout, or of several alike (`rollouts`; their tokens summed). reason: of excluded ones."""

    disposition: str
    reason: str
    no_signal: bool
    sampled_tokens: int
    trained_tokens: int
    rollouts: int = 1


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the account. The percentages are of all rollouts and all sampled tokens, to a tenth."""

    reason: str
    rollouts: int
    tokens: int
    rollouts_percent: float = 0.0
    tokens_percent: float = 0.0
    delivered: bool = False


@dataclass(frozen=True, kw_only=True)
class Delivery:
    lines: list[Line]
    rollouts: int
    tokens: int

    @property
    def delivered(self) -> Line | None:
        return next((line for line in self.lines if line.delivered), None)


def account(fates: Iterable[Fate]) -> Delivery:
    """Lines with most tokens first, `trained` before all."""
    rollouts: dict[str, int] = defaultdict(int)
    tokens: dict[str, int] = defaultdict(int)
    for fate in fates:
        total = max(fate.sampled_tokens, fate.trained_tokens)
        where = line_of(fate)
        rollouts[where] += fate.rollouts
        delivered = fate.trained_tokens if where == TRAINED else total
        tokens[where] += delivered
        if total > delivered:
            tokens[REST] += total - delivered
    names = sorted({*rollouts, *tokens}, key=lambda name: (name != TRAINED, -tokens[name], -rollouts[name], name))
    of_rollouts = percentages([rollouts[name] for name in names])
    of_tokens = percentages([tokens[name] for name in names])
    lines = [
        Line(
            reason=name, rollouts=rollouts[name], tokens=tokens[name], rollouts_percent=of_rollouts[place],
            tokens_percent=of_tokens[place], delivered=name == TRAINED,
        )
        for place, name in enumerate(names)
    ]  # fmt: skip
    return Delivery(lines=lines, rollouts=sum(rollouts.values()), tokens=sum(tokens.values()))


def line_of(fate: Fate) -> str:
    match fate.disposition:
        case Member.Disposition.TRAINED if fate.no_signal:
            return NO_SIGNAL
        case Member.Disposition.TRAINED if not fate.trained_tokens:
            return NO_TOKEN
        case Member.Disposition.TRAINED:
            return TRAINED
        case Member.Disposition.HELD:
            return HELD
        case Member.Disposition.EXCLUDED:
            return short_reason(fate.reason)
        case _:
            return ON_ITS_WAY


def short_reason(reason: str) -> str:
    """Without what differs from member to member: `staleness 3 is beyond 1` -> `staleness is beyond`."""
    words = [word for word in reason.split() if not word.strip(".,;:()").isdigit()]
    return f"excluded: {' '.join(words) or 'no reason recorded'}"[:120]


def percentages(values: Sequence[int]) -> list[float]:
    """Of their sum, in tenths that add up to exactly 100.0: the largest remainders are rounded up."""
    total = sum(values)
    if total == 0:
        return [0.0] * len(values)
    tenths = [1000 * value // total for value in values]
    remainders = sorted(range(len(values)), key=lambda place: (-(1000 * values[place] % total), place))
    for place in remainders[: 1000 - sum(tenths)]:
        tenths[place] += 1
    return [tenth / 10 for tenth in tenths]


def load_delivery(attempt: Attempt) -> Delivery:
    """One query, of as many rows as there are different reasons; also while the attempt runs."""
    total = Greatest("rollout__sampled_tokens", "trained_tokens")
    rows = (
        Member.objects.filter(group__attempt=attempt)
        .annotate(total=total, has_trained=Q(trained_tokens__gt=0))
        .values_list("disposition", "reason", "group__no_signal", "has_trained")
        .annotate(number=Count("pk"), sampled=Sum("total"), trained=Sum("trained_tokens"))
        .order_by()
    )
    return account(
        Fate(
            disposition=disposition, reason=reason, no_signal=no_signal, rollouts=number, sampled_tokens=sampled or 0,
            trained_tokens=trained or 0,
        )
        for disposition, reason, no_signal, _, number, sampled, trained in rows
    )  # fmt: skip
