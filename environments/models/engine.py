"""An inference server that sessions can be routed to. `training` writes these rows; routing reads them."""

import uuid

from django.db import models


class Engine(models.Model):
    class State(models.TextChoices):
        STARTING = "starting"
        SERVING = "serving"
        HOLDING = "holding", "holding (weights change)"
        DRAINING = "draining"
        STOPPED = "stopped"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pool = models.CharField(max_length=80, db_index=True, help_text="Rollouts with the same pool may be sent here.")
    name = models.CharField(max_length=80)
    base_url = models.CharField(max_length=200, help_text="http://host:port, or unix:///path.sock")
    api_key = models.CharField(max_length=80, blank=True)
    model_name = models.CharField(max_length=200, help_text="The `model` field that the engine expects.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.STARTING)
    state_reason = models.TextField(blank=True)
    version = models.IntegerField(default=0, help_text="Weight version served to new tokens.")
    cache_policy = models.CharField(
        max_length=10, default="recompute", help_text="At weight changes: recompute or keep."
    )
    standalone = models.BooleanField(default=False)
    turn_order = models.IntegerField(default=0, help_text="Cells that turn to training first have the lowest number.")
    num_running = models.IntegerField(default=0)
    num_waiting = models.IntegerField(default=0)
    kv_use = models.FloatField(default=0.0, help_text="Share of the KV cache in use, 0 to 1.")
    tokens_per_s = models.FloatField(default=0.0)
    heartbeat_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pool", "turn_order", "name")

    def __str__(self) -> str:
        return self.name
