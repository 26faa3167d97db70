"""The isolated place in which a harness, or a verifier, runs; a lease tells the reaper when it is an orphan."""

import uuid

from django.db import models


class Sandbox(models.Model):
    class Kind(models.TextChoices):
        PROCESS = "process"
        DOCKER = "docker"

    class Purpose(models.TextChoices):
        AGENT = "agent"
        VERIFIER = "verifier"
        WARM = "warm", "prepared, for whoever comes"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey("environments.Session", null=True, on_delete=models.CASCADE, related_name="sandboxes")
    rollout = models.ForeignKey("environments.Rollout", null=True, on_delete=models.CASCADE, related_name="sandboxes")
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.PROCESS)
    purpose = models.CharField(max_length=10, choices=Purpose.choices, default=Purpose.AGENT)
    image = models.CharField(max_length=200, blank=True, help_text="Id of its image; empty: a process sandbox.")
    host = models.CharField(max_length=100)
    directory = models.TextField(help_text="Host directory with work tree, home, logs and control socket.")
    handle = models.JSONField(default=dict, help_text="What `attach` needs: pid and start time, or container id.")
    lease_expires_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("created_at",)
        verbose_name_plural = "sandboxes"
