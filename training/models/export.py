"""A file of recorded rollouts for use elsewhere: what is in it, how far it is, where it lies. The row is the job's truth."""

import uuid

from django.db import models


class Export(models.Model):
    class Format(models.TextChoices):
        SFT = "sft", "SFT conversations"
        DPO = "dpo", "DPO pairs"
        KTO = "kto", "KTO (kept or not)"
        PRM = "prm", "PRM turn labels"
        ATIF = "atif", "ATIF trajectories"
        TOKENS = "tokens", "token ids and logprobs"

    class State(models.TextChoices):
        QUEUED = "queued"
        WRITING = "writing"
        DONE = "done"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=120)
    format = models.CharField(max_length=8, choices=Format.choices)
    items = models.JSONField(
        help_text='[{"rollout": id, "reward", "kept", "turns"}] or [{"chosen": id, "rejected": id, ...}], frozen.'
    )
    total = models.PositiveIntegerField()
    done = models.PositiveIntegerField(default=0)
    left_out = models.JSONField(default=dict, help_text="How many items gave no line, by reason.")
    query = models.JSONField(default=dict, help_text="The filter that chose the items, and of which run.")
    made_by = models.CharField(max_length=150, blank=True)
    state = models.CharField(max_length=8, choices=State.choices, default=State.QUEUED)
    error = models.TextField(blank=True)
    path = models.TextField(blank=True)
    size_bytes = models.BigIntegerField(default=0)
    lease_owner = models.CharField(max_length=100, blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_over(self) -> bool:
        return self.state in (self.State.DONE, self.State.FAILED)
