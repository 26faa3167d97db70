"""What a sandbox asked of the network, one row a request, whether it was let through or not."""

from django.db import models


class EgressRequest(models.Model):
    class Verdict(models.TextChoices):
        ALLOWED = "allowed"
        DENIED = "denied"
        FAILED = "failed"

    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="egress_requests")
    at = models.DateTimeField()
    method = models.CharField(max_length=20)
    host = models.CharField(max_length=255)
    port = models.PositiveIntegerField()
    verdict = models.CharField(max_length=10, choices=Verdict.choices)
    reason = models.CharField(max_length=200, blank=True, help_text="Why it was denied, failed or cut.")
    sent_bytes = models.BigIntegerField(default=0, help_text="From the sandbox.")
    received_bytes = models.BigIntegerField(default=0, help_text="To the sandbox.")
    duration_s = models.FloatField(null=True, help_text="Null: still open, or its worker died.")

    class Meta:
        ordering = ("at", "id")
        indexes = [models.Index(fields=("rollout", "at"))]

    def __str__(self) -> str:
        return f"{self.method} {self.host}:{self.port} {self.verdict}"
