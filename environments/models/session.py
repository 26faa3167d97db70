"""One start of a harness process: its key, and the gateway that holds it."""

import secrets
import uuid

from django.db import models


def new_key() -> str:
    return secrets.token_urlsafe(24)


class Session(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="sessions")
    key = models.CharField(max_length=64, unique=True, default=new_key)
    gateway = models.CharField(max_length=100, blank=True, help_text="Who holds it.")
    gateway_expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, help_text="From here on its calls are answered 409.")

    class Meta:
        ordering = ("created_at",)
