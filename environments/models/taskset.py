"""A named, versioned set of tasks on disk in the Harbor directory layout."""

import uuid
from typing import Any

from django.db import models


class TaskSet(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(
        max_length=110, unique=True, help_text="What runs refer to: the base name, from version 2 on with `@<version>`."
    )
    base_name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField(default=1, help_text="Other contents under the same base name: the next one.")
    description = models.TextField(blank=True)
    source = models.CharField(max_length=200, help_text="`generated:<generator>` or `imported:<file name>`.")
    digest = models.CharField(max_length=64, help_text="sha256 over every file of every task, in order.")
    directory = models.TextField(help_text="Directory that holds one directory per task.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("base_name", "version")
        constraints = [models.UniqueConstraint(fields=("base_name", "version"), name="taskset_version_unique")]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.base_name = self.base_name or self.name.partition("@")[0]
        super().save(*args, **kwargs)
