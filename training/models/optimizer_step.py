"""One optimizer step: which groups it ate, and how far it is. The order that the controller gives a trainer."""

from django.db import models


class OptimizerStep(models.Model):
    class Kind(models.TextChoices):
        SUPERVISED = "supervised"
        POLICY = "policy"

    class State(models.TextChoices):
        REQUESTED = "requested"
        TRAINING = "training"
        DONE = "done"
        FAILED = "failed"
        DROPPED = "dropped", "dropped (not finite)"

    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="optimizer_steps")
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.POLICY)
    number = models.PositiveIntegerField(help_text="From 1, within kind.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.REQUESTED)
    error = models.TextField(blank=True)
    trains_version = models.IntegerField(help_text="Version of the weights it starts from.")
    metrics = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("attempt", "kind", "number")
        constraints = [models.UniqueConstraint(fields=("attempt", "kind", "number"), name="optimizer_step_unique")]
