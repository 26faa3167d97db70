"""A named, versioned set of tasks on disk in the Harbor directory layout."""

import uuid

from django.db import models


class TaskSet(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=100, unique=True)
    description = models.TextField(blank=True)
    source = models.CharField(max_length=200, help_text="`generated:<generator>` or `imported:<file name>`.")
    digest = models.CharField(max_length=64, help_text="sha256 over every file of every task, in order.")
    directory = models.TextField(help_text="Directory that holds one directory per task.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
