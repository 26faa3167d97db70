"""A rollout that started from the record of another. The shared nodes belong to the original."""

from django.db import models


class Fork(models.Model):
    rollout = models.OneToOneField("environments.Rollout", on_delete=models.CASCADE, related_name="forked_from")
    original = models.ForeignKey("environments.Rollout", on_delete=models.PROTECT, related_name="forks")
    call_index = models.PositiveIntegerField(help_text="First call that was answered live again.")
    created_at = models.DateTimeField(auto_now_add=True)
