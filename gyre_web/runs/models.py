"""Saved filters of the rollout tables; runs themselves belong to `training`."""

import uuid

from django.conf import settings
from django.db import models


class SavedFilter(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=120)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    run = models.ForeignKey("training.Run", null=True, on_delete=models.CASCADE, related_name="saved_filters")
    query = models.JSONField(default=dict, help_text="The rollout filter's fields.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)
