"""One number of one step. Keys are defined, with meaning and unit, in training.metric_definitions.DEFINITIONS."""

from django.db import models


class Metric(models.Model):
    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="metrics")
    kind = models.CharField(max_length=10, default="policy", help_text="supervised, preference, policy or evaluation.")
    step = models.IntegerField()
    key = models.CharField(max_length=120)
    value = models.FloatField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("attempt", "key", "step")
        constraints = [models.UniqueConstraint(fields=("attempt", "kind", "step", "key"), name="metric_unique")]
