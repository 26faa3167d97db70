"""Who leads: one row, an expiry, and a fencing epoch that is checked at each act."""

from django.db import models


class ControllerLease(models.Model):
    name = models.CharField(max_length=20, primary_key=True, default="controller")
    owner = models.CharField(max_length=100, blank=True)
    epoch = models.PositiveBigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True)
