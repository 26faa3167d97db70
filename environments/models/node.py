"""The tokens one message adds. Concatenated along a branch they are what the engine saw and produced, exactly."""

from django.db import models


class Node(models.Model):
    """`ids` is little-endian uint32; `behaviour_logprobs` little-endian float32, only for sampled nodes,
    one per id after the first `opener_length`.

    Hypothetical example, an assistant turn of three tokens sampled across a weight change:
    index 5, parent 4, role "assistant", branch_role "main", sampled True,
    ids 1 9906 11 2 (16 bytes) of which opener_length 1, behaviour_logprobs -0.1 -2.0 -0.3 (12 bytes),
    version_spans [[1, 3, 6], [3, 4, 7]] (start, end, version; positions in ids), oldest_kv_version 6.
    """

    class BranchRole(models.TextChoices):
        MAIN = "main"
        MAIN_SUMMARY = "main-summary"
        SUB_AGENT = "sub-agent"
        SUB_SUMMARY = "sub-summary"
        SIDE = "side"

    id = models.BigAutoField(primary_key=True)
    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="nodes")
    index = models.PositiveIntegerField(help_text="Dense within the rollout, in order of creation.")
    parent = models.IntegerField(null=True, help_text="Index of the parent node; null for a root.")
    depth_tokens = models.PositiveIntegerField(help_text="Tokens from the root up to and without this node.")
    key = models.BinaryField(max_length=32, help_text="hash(parent key, canonical digest of the message).")
    role = models.CharField(max_length=12, help_text="Of the message: system, user, assistant, tool.")
    branch_role = models.CharField(max_length=14, choices=BranchRole.choices, default=BranchRole.MAIN)
    sampled = models.BooleanField(help_text="The policy produced these ids (an aborted call's too; see trainable).")
    trainable = models.BooleanField(default=False, help_text="Sampled, whole, and not of a side call.")
    opener_length = models.PositiveSmallIntegerField(
        default=0, help_text="Leading ids that are the template's generation prompt: context, never sampled."
    )
    ids = models.BinaryField()
    behaviour_logprobs = models.BinaryField(null=True, help_text="Null also for a scripted expert's demonstrations.")
    version_spans = models.JSONField(default=list, help_text="[[start, end, version], ...] over this node's tokens.")
    oldest_kv_version = models.IntegerField(null=True)
    engines = models.JSONField(default=list)
    message = models.JSONField(help_text="Canonical message; NUL and lone surrogates escaped reversibly.")
    flags = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("rollout", "index")
        constraints = [models.UniqueConstraint(fields=("rollout", "index"), name="node_index_unique_in_rollout")]
