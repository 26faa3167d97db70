"""N rollouts of one task, dispatched together."""

import uuid

from django.db import models


class Group(models.Model):
    class State(models.TextChoices):
        OPEN = "open"
        READY = "ready", "ready to be eaten"
        HELD = "held", "held for review"
        EATEN = "eaten"
        EXCLUDED = "excluded"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="groups")
    index = models.PositiveIntegerField(help_text="Order of dispatch within the attempt.")
    task = models.ForeignKey("environments.Task", on_delete=models.PROTECT, related_name="groups")
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    reason = models.CharField(max_length=200, blank=True, help_text="Why excluded, or why held.")
    no_signal = models.BooleanField(default=False, help_text="All rewards equal: advantage 0 for every member.")
    dispatched_version = models.IntegerField(default=0)
    step = models.ForeignKey("training.OptimizerStep", null=True, on_delete=models.SET_NULL, related_name="groups")
    created_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("attempt", "index")
        constraints = [models.UniqueConstraint(fields=("attempt", "index"), name="group_index_unique_in_attempt")]
