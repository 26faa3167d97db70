"""Weights, optimizer, RNG and counters from which an attempt goes on after a crash, at a step's end."""

from django.db import models


class Checkpoint(models.Model):
    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="checkpoints")
    step = models.PositiveIntegerField()
    version = models.IntegerField()
    path = models.TextField()
    size_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("attempt", "step")
        constraints = [models.UniqueConstraint(fields=("attempt", "step"), name="checkpoint_step_unique_in_attempt")]
