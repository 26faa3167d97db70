"""One model request of the harness, as the gateway saw it."""

import uuid

from django.db import models


class Call(models.Model):
    class State(models.TextChoices):
        OPEN = "open"
        COMPLETED = "completed"
        ABORTED = "aborted", "aborted (client hung up)"
        REFUSED = "refused"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="calls")
    session = models.ForeignKey("environments.Session", on_delete=models.CASCADE, related_name="calls")
    index = models.PositiveIntegerField()
    relay_call = models.CharField(
        max_length=64, blank=True, help_text="The relay's id of the HTTP exchange; unique when set."
    )
    dialect = models.CharField(max_length=12)
    digest = models.BinaryField(max_length=32, help_text="Of the canonical request, to recognise retries.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    prompt_node = models.IntegerField(null=True, help_text="Last node of the prompt.")
    answer_node = models.IntegerField(null=True, help_text="The sampled node.")
    streamed = models.BooleanField(default=False, help_text="The harness asked for a stream.")
    requested = models.JSONField(default=dict, help_text="What the harness asked for.")
    imposed = models.JSONField(default=dict, help_text="What the run imposed.")
    unknown = models.JSONField(default=dict, help_text="Fields of the request that no dialect knows.")
    drift = models.JSONField(
        default=list,
        help_text="[[class, message, node], ...]: where its history differs from the tree; each shown once a node.",
    )
    num_prompt_tokens = models.PositiveIntegerField(default=0)
    num_cached_tokens = models.PositiveIntegerField(default=0)
    num_sampled_tokens = models.PositiveIntegerField(default=0)
    finish_reason = models.CharField(max_length=20, blank=True)
    http_status = models.PositiveSmallIntegerField(null=True)
    error = models.TextField(blank=True)
    engines = models.JSONField(default=list)
    retry_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="retries")
    replay_of = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.SET_NULL,
        related_name="replays",
        help_text="Answered from this call's record.",
    )
    started_at = models.DateTimeField()
    first_token_s = models.FloatField(null=True, help_text="From started_at.")
    held_s = models.FloatField(default=0.0, help_text="Waited for an engine or a weight change.")
    duration_s = models.FloatField(null=True)

    class Meta:
        ordering = ("rollout", "index")
        constraints = [
            models.UniqueConstraint(fields=("rollout", "index"), name="call_index_unique_in_rollout"),
            models.UniqueConstraint(
                fields=("session", "relay_call"),
                condition=~models.Q(relay_call=""),
                name="relay_call_unique_in_session",
            ),
        ]
