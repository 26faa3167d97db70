"""People's judgement of rollouts, with author and history: labels are added, never changed in place."""

import uuid

from django.conf import settings
from django.db import models


class Label(models.Model):
    """One judgement of one rollout by one person. The latest of a person supersedes the earlier ones."""

    class Verdict(models.TextChoices):
        SUCCESS = "success"
        PARTIAL = "partial"
        FAILURE = "failure"
        HACK = "hack", "reward hack"
        UNSURE = "unsure"

    class Keep(models.TextChoices):
        UNSET = "unset"
        KEEP = "keep"
        DROP = "drop"

    class Effect(models.TextChoices):
        TRAINS = "trains", "changes what is trained"
        TOO_LATE = "too_late", "recorded; the group was already eaten"
        NONE = "none", "recorded; nothing to train"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="labels")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    author_name = models.CharField(max_length=150)
    verdict = models.CharField(max_length=10, choices=Verdict.choices, blank=True)
    keep = models.CharField(max_length=6, choices=Keep.choices, default=Keep.UNSET)
    reward = models.FloatField(null=True, help_text="Override of the verifier's number.")
    reason = models.TextField(blank=True, help_text="Required with an override or a drop.")
    note = models.TextField(blank=True)
    turns = models.JSONField(
        default=dict, help_text='{"<node index>": true (right) or false (wrong)}: marks on single turns.'
    )
    effect = models.CharField(max_length=10, choices=Effect.choices, default=Effect.NONE)
    superseded_by = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="supersedes")
    client_key = models.CharField(
        max_length=40, unique=True, help_text="Made by the browser: a re-sent save is one label."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at",)


class PairPreference(models.Model):
    """Which of two rollouts of one task a person prefers. Stored in one order: `first` has the smaller id."""

    class Choice(models.TextChoices):
        FIRST = "first"
        SECOND = "second"
        TIE = "tie"
        NEITHER = "neither", "neither (both bad)"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    first = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="+")
    second = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="+")
    choice = models.CharField(max_length=8, choices=Choice.choices)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    author_name = models.CharField(max_length=150)
    reason = models.TextField(blank=True)
    superseded_by = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="supersedes")
    client_key = models.CharField(
        max_length=40, unique=True, help_text="Made by the browser: a re-sent save is one judgement."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at",)
        indexes = [models.Index(fields=("first", "second"))]


class Queue(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=120)
    filter = models.ForeignKey("runs.SavedFilter", on_delete=models.PROTECT, related_name="queues")
    reviewers_per_item = models.PositiveSmallIntegerField(default=1)
    reservation_minutes = models.PositiveSmallIntegerField(default=15)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)


class Reservation(models.Model):
    """An item that a reviewer has on screen; nobody else is given it until then."""

    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, related_name="reservations")
    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE)
    reviewer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    expires_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    skipped_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("queue", "rollout", "reviewer"), name="reservation_unique")]
