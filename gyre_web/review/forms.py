"""The form that makes a queue: from a saved filter, or from a filter written here."""

from typing import Any

from django import forms
from django.db.models import QuerySet

from environments.models import Outcome, Rollout
from gyre_web.runs.models import SavedFilter
from training.models import Run


class QueueForm(forms.Form):
    name = forms.CharField(max_length=120, label="Name", widget=forms.TextInput(attrs={"class": "input"}))
    saved_filter = forms.ModelChoiceField(
        SavedFilter.objects.none(), required=False, empty_label="a new filter, below",
        help_text="What the queue holds. A saved filter comes from a run's rollout table.",
        widget=forms.Select(attrs={"class": "select"}),
    )  # fmt: skip
    run = forms.ModelChoiceField(
        Run.objects.all(), required=False, empty_label="every run", widget=forms.Select(attrs={"class": "select"})
    )
    outcome = forms.ChoiceField(
        choices=[("", "any outcome"), *Outcome.choices], required=False, widget=forms.Select(attrs={"class": "select"})
    )
    purpose = forms.ChoiceField(
        choices=[("", "any purpose"), *Rollout.Purpose.choices],
        required=False,
        widget=forms.Select(attrs={"class": "select"}),
    )
    reward_min = forms.FloatField(
        required=False, label="Reward from", widget=forms.NumberInput(attrs={"class": "input", "step": "any"})
    )
    reward_max = forms.FloatField(
        required=False, label="Reward to", widget=forms.NumberInput(attrs={"class": "input", "step": "any"})
    )
    reviewed = forms.ChoiceField(
        choices=[("", "judged or not"), ("no", "not judged yet"), ("yes", "judged")], required=False,
        widget=forms.Select(attrs={"class": "select"}),
    )  # fmt: skip
    flagged = forms.BooleanField(required=False, label="Only flagged")
    held = forms.BooleanField(required=False, label="Only held for review")
    reviewers_per_item = forms.IntegerField(
        min_value=1,
        max_value=9,
        initial=1,
        label="Reviewers an item",
        widget=forms.NumberInput(attrs={"class": "input"}),
    )
    reservation_minutes = forms.IntegerField(
        min_value=1, max_value=240, initial=15, label="Reserved for, minutes",
        help_text="So long an item on a screen is given to nobody else.", widget=forms.NumberInput(attrs={"class": "input"}),
    )  # fmt: skip

    def __init__(self, *args: Any, filters: QuerySet[SavedFilter], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["saved_filter"].queryset = filters  # type: ignore[attr-defined]

    def query(self) -> dict[str, Any]:
        """The filter written here, in the fields of the rollout tables, without empty ones."""
        names = ("outcome", "purpose", "reward_min", "reward_max", "reviewed", "held")
        query = {name: self.cleaned_data[name] for name in names if self.cleaned_data[name] not in (None, "", False)}
        return query | ({"flagged": "yes"} if self.cleaned_data["flagged"] else {})
