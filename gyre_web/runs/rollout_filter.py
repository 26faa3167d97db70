"""The filter of rollout tables: one form for the page, the saved filters, the review queues and REST.

From:  a query string, or SavedFilter.query.
To:    a queryset of rollouts.
Holds: what is not understood is an error by field, never silently ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django import forms
from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from environments.message_index import containing
from environments.models import Outcome, Rollout
from gyre_web.accounts.forms import style
from training.models import Attempt, Member

SORTS = {
    "created": "created_at",
    "task": "task__name",
    "outcome": "outcome",
    "reward": "reward",
    "advantage": "member__advantage",
    "calls": "num_calls",
    "tokens": "sampled_tokens",
    "version": "newest_version",
    "duration": "duration",
    "step": "member__group__step__number",
}
ANY = ("", "Any")
YES_NO = (ANY, ("yes", "Yes"), ("no", "No"))


VERDICTS = (
    ("success", "success"),
    ("partial", "partial"),
    ("failure", "failure"),
    ("hack", "reward hack"),
    ("unsure", "unsure"),
)
"""As gyre_web.review.models.Label.Verdict has them; that module imports this one."""


class RolloutFilterForm(forms.Form):
    """Every field optional; numbers are inclusive bounds."""

    q = forms.CharField(required=False, max_length=200, label="Messages contain")
    task = forms.CharField(required=False, max_length=150)
    family = forms.CharField(required=False, max_length=60)
    state = forms.ChoiceField(required=False, choices=(ANY, ("live", "Live"), *Rollout.State.choices))
    outcome = forms.ChoiceField(required=False, choices=(ANY, *Outcome.choices))
    disposition = forms.ChoiceField(required=False, choices=(ANY, *Member.Disposition.choices))
    reason = forms.CharField(required=False, max_length=200, label="Reason contains")
    purpose = forms.ChoiceField(required=False, choices=(ANY, *Rollout.Purpose.choices))
    reward_min = forms.FloatField(required=False, label="Reward from")
    reward_max = forms.FloatField(required=False, label="Reward to")
    step = forms.IntegerField(required=False, min_value=1)
    version = forms.IntegerField(required=False, min_value=0, label="Sampled by version")
    tokens_min = forms.IntegerField(required=False, min_value=0, label="Tokens from")
    tokens_max = forms.IntegerField(required=False, min_value=0, label="Tokens to")
    seconds_min = forms.FloatField(required=False, min_value=0, label="Seconds from")
    seconds_max = forms.FloatField(required=False, min_value=0, label="Seconds to")
    flagged = forms.ChoiceField(required=False, choices=YES_NO)
    reviewed = forms.ChoiceField(required=False, choices=YES_NO)
    kept = forms.ChoiceField(required=False, choices=(ANY, ("keep", "Kept"), ("drop", "Dropped")), label="People said")
    verdict = forms.ChoiceField(required=False, choices=(ANY, *VERDICTS), label="Judged as")
    harness = forms.CharField(required=False, max_length=100)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        style(self)


NAMES = tuple(RolloutFilterForm.base_fields)


@dataclass(frozen=True, kw_only=True)
class RolloutFilter:
    """What to show, checked. `errors`: by field; a filter with errors matches nothing."""

    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    sort: str = "-created"

    @property
    def active(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if value not in (None, "")}


def parse_filter(query: Mapping[str, Any]) -> RolloutFilter:
    form = RolloutFilterForm({name: query.get(name, "") for name in NAMES})
    sort = str(query.get("sort", "-created"))
    valid = form.is_valid()
    return RolloutFilter(
        values=form.cleaned_data if valid else {},
        errors={} if valid else {name: [str(text) for text in texts] for name, texts in form.errors.items()},
        sort=sort if sort.removeprefix("-") in SORTS else "-created",
    )


def apply_filter(rollouts: "QuerySet[Rollout]", wanted: RolloutFilter) -> "QuerySet[Rollout]":
    if wanted.errors:
        return rollouts.none()
    values = wanted.active
    rollouts = rollouts.annotate(
        duration=ExpressionWrapper(F("ended_at") - F("started_at"), DurationField()),
        judged_reward=Coalesce("member__effective_reward", "reward"),
    )
    rollouts = rollouts.filter(build_condition(values))
    if "reviewed" in values:
        from gyre_web.review.models import Label

        labelled = Exists(Label.objects.filter(rollout=OuterRef("pk")))
        rollouts = rollouts.filter(labelled if values["reviewed"] == "yes" else ~labelled)
    for name, column in (("kept", "keep"), ("verdict", "verdict")):
        if name in values:
            from gyre_web.review.models import Label

            standing = Label.objects.filter(rollout=OuterRef("pk"), superseded_by=None, **{column: values[name]})
            rollouts = rollouts.filter(Exists(standing))
    if "q" in values:
        rollouts = containing(rollouts, values["q"])
    return rollouts


SIMPLE = {
    "task": "task__name__icontains",
    "family": "task__family",
    "outcome": "outcome",
    "disposition": "member__disposition",
    "reason": "member__reason__icontains",
    "purpose": "purpose",
    "harness": "harness__name",
    "reward_min": "judged_reward__gte",
    "reward_max": "judged_reward__lte",
    "step": "member__group__step__number",
    "tokens_min": "sampled_tokens__gte",
    "tokens_max": "sampled_tokens__lte",
}


def build_condition(values: Mapping[str, Any]) -> Q:
    condition = Q()
    for name, lookup in SIMPLE.items():
        if name in values:
            condition &= Q(**{lookup: values[name]})
    if "state" in values:
        live = values["state"] == "live"
        condition &= ~Q(state=Rollout.State.ENDED) if live else Q(state=values["state"])
    if "version" in values:
        condition &= Q(oldest_version__lte=values["version"], newest_version__gte=values["version"])
    if "flagged" in values:
        condition &= ~Q(flags=[]) if values["flagged"] == "yes" else Q(flags=[])
    for name, lookup in (("seconds_min", "duration__gte"), ("seconds_max", "duration__lte")):
        if name in values:
            condition &= Q(**{lookup: timedelta(seconds=values[name])})
    return condition


def rollouts_of(attempts: Iterable[Attempt]) -> "QuerySet[Rollout]":
    """All rollouts of these attempts: training, demonstrations, evaluation."""
    condition = Q(pk__in=[])
    for attempt in attempts:
        condition |= Q(pool=attempt.pool) | Q(pool__startswith=f"{attempt.pool}-")
    return Rollout.objects.filter(condition)


def order(rollouts: "QuerySet[Rollout]", sort: str) -> "QuerySet[Rollout]":
    key = F(SORTS[sort.removeprefix("-")])
    return rollouts.order_by(
        key.desc(nulls_last=True) if sort.startswith("-") else key.asc(nulls_last=True), "-created_at", "pk"
    )


def describe(values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(field, its label, the value) of each active condition, for chips that can be removed."""
    fields = RolloutFilterForm.base_fields
    return [(name, str(fields[name].label or name.replace("_", " ")), str(value)) for name, value in values.items()]
