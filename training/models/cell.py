"""A set of devices that serves or trains, one at a time."""

import uuid

from django.db import models


class Cell(models.Model):
    class Role(models.TextChoices):
        IDLE = "idle"
        SERVES = "serves"
        TURNING = "turning"
        TRAINS = "trains"
        DOWN = "down"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="cells")
    index = models.PositiveSmallIntegerField(help_text="0 is the core.")
    host = models.CharField(max_length=100, blank=True)
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.IDLE)
    wanted_role = models.CharField(
        max_length=10, choices=Role.choices, default=Role.IDLE, help_text="The controller's order."
    )
    order_epoch = models.PositiveBigIntegerField(default=0, help_text="Fencing: orders of an older leader are ignored.")
    engine = models.ForeignKey("environments.Engine", null=True, on_delete=models.SET_NULL, related_name="cells")
    processes = models.JSONField(default=dict, help_text='{"engine": {"pid":, "started":}, "trainer": {...}}')
    reason = models.TextField(blank=True)
    lease_owner = models.CharField(max_length=100, blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    role_since = models.DateTimeField(null=True)
    history = models.JSONField(default=list, help_text="[[iso time, role], ...]: the elastic strip's lanes.")

    class Meta:
        ordering = ("attempt", "index")
        constraints = [models.UniqueConstraint(fields=("attempt", "index"), name="cell_index_unique_in_attempt")]

    @property
    def is_core(self) -> bool:
        return self.index == 0
