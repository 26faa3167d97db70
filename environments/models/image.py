"""A container image on one host: wanted, being made, ready or failed, with what was said while it was made."""

import uuid

from django.db import models


class Image(models.Model):
    class State(models.TextChoices):
        WANTED = "wanted"
        BUILDING = "building"
        READY = "ready"
        FAILED = "failed"

    class Origin(models.TextChoices):
        BUILT = "built", "built from a Dockerfile"
        NAMED = "named", "given by name"
        BASE = "base", "made from this machine's package mirror"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    reference = models.CharField(max_length=300, help_text="Name and tag; the tag of what we make names its contents.")
    host = models.CharField(max_length=100, help_text="Where the container engine is that has it.")
    origin = models.CharField(max_length=10, choices=Origin.choices)
    context = models.TextField(blank=True, help_text="Directory with the Dockerfile; empty where there is none.")
    digest = models.CharField(max_length=64, blank=True, help_text="sha256 over the context, or over the recipe.")
    build_timeout_s = models.FloatField(default=0.0, help_text="Of the most patient task that is built from it.")
    is_pulled = models.BooleanField(
        default=False, help_text="Had the engine pull it: what was here before is not ours."
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.WANTED, db_index=True)
    image_id = models.CharField(max_length=80, blank=True, help_text="The engine's id; empty until it is ready.")
    size_bytes = models.BigIntegerField(null=True)
    stand_ins = models.JSONField(default=dict, help_text="Names of FROM that a local image stood in for.")
    log = models.TextField(blank=True, help_text="The end of what the engine said.")
    error = models.TextField(blank=True, help_text="What happened, to what, and what to do next.")

    lease_owner = models.CharField(max_length=100, blank=True, help_text="Who makes it.")
    lease_expires_at = models.DateTimeField(null=True)

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    built_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = [models.UniqueConstraint(fields=("reference", "host"), name="image_unique_on_host")]

    def __str__(self) -> str:
        return self.reference
