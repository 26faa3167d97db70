"""One harness working on one task. The row is the truth; a Celery job only drives it under a lease."""

import uuid

from django.db import models

from environments.models.outcome import Outcome


class Rollout(models.Model):
    class State(models.TextChoices):
        QUEUED = "queued"
        STARTING = "starting"
        RUNNING = "running"
        VERIFYING = "verifying"
        ENDED = "ended"

    class Purpose(models.TextChoices):
        TRAIN = "train"
        EVALUATION = "evaluation"
        DEMONSTRATION = "demonstration"
        TRIAL = "trial"

    class Sandboxing(models.TextChoices):
        AUTO = "auto"
        PROCESS = "process"
        DOCKER = "docker"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    task = models.ForeignKey("environments.Task", on_delete=models.PROTECT, related_name="rollouts")
    model = models.ForeignKey("environments.Model", on_delete=models.PROTECT, related_name="rollouts")
    harness = models.ForeignKey("environments.Harness", on_delete=models.PROTECT, related_name="rollouts")
    purpose = models.CharField(max_length=15, choices=Purpose.choices, default=Purpose.TRAIN)
    pool = models.CharField(max_length=80, help_text="Which engines serve it.")
    sandboxing = models.CharField(
        max_length=10, choices=Sandboxing.choices, default=Sandboxing.AUTO, help_text="Kind of sandbox it wants."
    )
    sampling = models.JSONField(default=dict, help_text="environments.config.Sampling: imposed on every call.")
    budgets = models.JSONField(default=dict, help_text="environments.config.Budgets.")

    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED, db_index=True)
    outcome = models.CharField(max_length=20, choices=Outcome.choices, blank=True)
    ending = models.CharField(
        max_length=20, choices=Outcome.choices, blank=True, help_text="Set by the gateway (budget, overflow) to end it."
    )
    error = models.TextField(blank=True, help_text="What happened, to what, and what to do next.")
    exit_code = models.IntegerField(null=True)
    reward = models.FloatField(null=True, help_text="The verifier's number. Null: never scored, which is not 0.")
    reward_parts = models.JSONField(default=dict)
    verifier_log = models.TextField(blank=True)
    verifier_trials = models.PositiveSmallIntegerField(default=0)
    harness_output = models.TextField(blank=True, help_text="Terminal text, kept when the rollout ends.")
    diff = models.TextField(blank=True, help_text="Work tree against its start.")
    flags = models.JSONField(default=list, help_text='[{"kind": ..., "evidence": ...}]')
    setup_failures = models.PositiveSmallIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True)

    lease_owner = models.CharField(max_length=100, blank=True)
    lease_epoch = models.PositiveIntegerField(
        default=0, help_text="Rises with every take-over; also the live log's epoch."
    )
    lease_expires_at = models.DateTimeField(null=True)

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    harness_ended_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    last_activity_at = models.DateTimeField(null=True)
    messages_indexed_at = models.DateTimeField(null=True, help_text="When its messages' words were indexed for search.")

    num_calls = models.PositiveIntegerField(default=0)
    num_branches = models.PositiveIntegerField(default=0)
    sampled_tokens = models.PositiveIntegerField(default=0)
    distinct_tokens = models.PositiveIntegerField(default=0, help_text="Tokens of all nodes, each counted once.")
    longest_context = models.PositiveIntegerField(default=0)
    oldest_version = models.IntegerField(null=True)
    newest_version = models.IntegerField(null=True)
    drift = models.JSONField(default=dict, help_text="Differences forgiven while matching, by class.")

    class Meta:
        ordering = ("-created_at",)
        indexes = [
            models.Index(fields=("pool", "state")),
            models.Index(fields=("state", "lease_expires_at")),
            models.Index(
                fields=("ended_at",), condition=models.Q(messages_indexed_at=None), name="rollout_messages_unindexed"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task_id}/{str(self.id)[:8]}"

    @property
    def is_live(self) -> bool:
        return self.state != self.State.ENDED
