"""A frozen selection of recorded rollouts, or of judged pairs, that runs train on. It never changes once made."""

import uuid

from django.db import models


class Dataset(models.Model):
    class Kind(models.TextChoices):
        ROLLOUTS = "rollouts"
        PAIRS = "pairs", "judged pairs"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    items = models.JSONField(help_text="Rollout ids; or [chosen, rejected] rollout ids.")
    num_items = models.PositiveIntegerField()
    digest = models.CharField(max_length=64, help_text="sha256 of the items, in order.")
    query = models.JSONField(default=dict, help_text="The filter that chose them, and of which run.")
    made_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.name
