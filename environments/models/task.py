"""One problem with its environment and its verifier."""

import uuid

from django.db import models


class Task(models.Model):
    class Split(models.TextChoices):
        TRAIN = "train"
        HELDOUT = "heldout", "held out"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    taskset = models.ForeignKey("environments.TaskSet", on_delete=models.CASCADE, related_name="tasks")
    name = models.SlugField(max_length=150)
    family = models.CharField(max_length=60, blank=True, db_index=True)
    split = models.CharField(max_length=10, choices=Split.choices, default=Split.TRAIN)
    directory = models.TextField(help_text="Absolute path of the Harbor task directory.")
    instruction = models.TextField()
    digest = models.CharField(max_length=64)
    image = models.CharField(max_length=300, blank=True, help_text="Empty: the process sandbox can run it.")
    agent_timeout_s = models.FloatField()
    verifier_timeout_s = models.FloatField()
    settings = models.JSONField(default=dict, help_text="The parsed task.toml, whole.")
    checked_at = models.DateTimeField(null=True, help_text="When solution and doing nothing were last graded.")
    check_result = models.JSONField(
        default=dict, help_text="environments.tasksets.checks.CheckResult of that time; empty: never checked."
    )

    class Meta:
        ordering = ("taskset", "name")
        constraints = [models.UniqueConstraint(fields=("taskset", "name"), name="task_name_unique_in_taskset")]

    def __str__(self) -> str:
        return self.name
