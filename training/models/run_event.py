"""What happened to an attempt, for people: dense, ordered, explained."""

from django.db import models


class RunEvent(models.Model):
    class Level(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        ERROR = "error"

    attempt = models.ForeignKey("training.Attempt", on_delete=models.CASCADE, related_name="events")
    level = models.CharField(max_length=8, choices=Level.choices, default=Level.INFO)
    kind = models.CharField(max_length=40, help_text="version_published, burst_started, worker_lost, ...")
    text = models.TextField()
    data = models.JSONField(default=dict)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("attempt", "id")
