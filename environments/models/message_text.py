"""The words of recorded messages, for search over many rollouts: a message in pieces, because a tsvector holds 1 MB."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models


class MessageText(models.Model):
    rollout = models.ForeignKey("environments.Rollout", on_delete=models.CASCADE, related_name="message_texts")
    node_index = models.PositiveIntegerField()
    piece = models.PositiveIntegerField(help_text="From 0; neighbours overlap (environments.message_index).")
    words = SearchVectorField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("rollout", "node_index", "piece"), name="message_text_piece_unique")
        ]
        indexes = [GinIndex(fields=("words",), name="message_text_words", fastupdate=False)]
