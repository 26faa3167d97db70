"""An unmodified agent program with its pinned version and settings."""

import uuid

from django.db import models


class Harness(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=100, unique=True)
    program = models.CharField(max_length=60, help_text="Key in environments.harnesses.HARNESSES.")
    version = models.CharField(max_length=40)
    settings = models.JSONField(default=dict, help_text="Checked by the program's own settings class.")
    delivery = models.CharField(max_length=10, choices=(("whole", "whole"), ("stream", "stream")), default="whole")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
