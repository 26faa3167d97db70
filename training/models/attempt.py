"""A run's config, resolved and immutable, and where it stands. A restart with changes is a new attempt."""

import uuid

from django.db import models


class Attempt(models.Model):
    class State(models.TextChoices):
        QUEUED = "queued"
        WARMING = "warming", "warm start"
        RUNNING = "running"
        PAUSED = "paused"
        STOPPING = "stopping", "stopping (finishing what runs)"
        COMPLETED = "completed"
        STOPPED = "stopped"
        CANCELLED = "cancelled"
        FAILED = "failed"

    class Wanted(models.TextChoices):
        RUN = "run"
        PAUSE = "pause"
        STOP = "stop"
        CANCEL = "cancel"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    run = models.ForeignKey("training.Run", on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    config = models.JSONField(help_text="training.config.RunConfig, every default resolved.")
    provenance = models.JSONField(default=dict, help_text="Commit, package versions, machine.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED, db_index=True)
    state_reason = models.TextField(blank=True)
    wanted = models.CharField(
        max_length=10, choices=Wanted.choices, default=Wanted.RUN, help_text="What people asked for."
    )
    phase = models.CharField(max_length=40, blank=True, help_text="What it does now, in words for people.")
    phase_progress = models.JSONField(default=dict, help_text='{"done": 12, "total": 100, "unit": "demonstrations"}')
    step = models.PositiveIntegerField(default=0, help_text="Optimizer steps done in the online phase.")
    version = models.IntegerField(default=0, help_text="Published weight version. 0 is the base or warm-started model.")
    consumed_rollouts = models.PositiveIntegerField(default=0, help_text="Trained, or excluded for good.")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("run", "number")
        constraints = [models.UniqueConstraint(fields=("run", "number"), name="attempt_number_unique_in_run")]

    @property
    def pool(self) -> str:
        """Engine pool of its rollouts."""
        return f"attempt-{self.id}"

    @property
    def is_over(self) -> bool:
        return self.state in (self.State.COMPLETED, self.State.STOPPED, self.State.CANCELLED, self.State.FAILED)
