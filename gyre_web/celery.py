"""The Celery app. Jobs are thin and never the truth: rows with leases are. Queues: `rollouts` and `cells`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")

app = Celery("gyre")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="jobs")
