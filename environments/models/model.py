"""A base policy: weights, tokenizer, renderer, context length."""

import uuid

from django.db import models


class Model(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.SlugField(max_length=100, unique=True)
    path = models.TextField(help_text="Hugging Face directory, or hub name.")
    renderer = models.CharField(max_length=60, help_text="Name in environments.rendering.RENDERERS, or `scripted`.")
    context_length = models.PositiveIntegerField()
    num_parameters = models.BigIntegerField(default=0)
    settings = models.JSONField(
        default=dict, help_text="What was proven when the model was added (renderer probe, packing)."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
