"""Who did what, when, before and after, and in which request. User names are kept as text: users may go."""

from django.conf import settings
from django.db import models


class AuditEntry(models.Model):
    at = models.DateTimeField(auto_now_add=True, db_index=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    user_name = models.CharField(max_length=150)
    action = models.CharField(max_length=60, help_text="run.start, run.pause, label.save, ...")
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=60)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=40, blank=True)

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=("object_type", "object_id"))]
