"""A published set of weights."""

from django.db import models


class Version(models.Model):
    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="versions")
    number = models.IntegerField()
    path = models.TextField(blank=True, help_text="Directory in Hugging Face layout; empty once retention removed it.")
    step = models.PositiveIntegerField(default=0)
    pinned = models.BooleanField(default=False)
    evaluation = models.JSONField(default=dict, help_text='{"heldout": {"n": 120, "solved": 44, "rate": 0.367}}')
    created_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True)
    publish_s = models.FloatField(null=True)

    class Meta:
        ordering = ("attempt", "number")
        constraints = [models.UniqueConstraint(fields=("attempt", "number"), name="version_number_unique_in_attempt")]
