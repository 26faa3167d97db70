"""The Celery app. Jobs are thin and never the truth: rows with leases are. Queues: `rollouts` and `cells`."""

import os
import warnings

from celery import Celery
from celery.platforms import SecurityWarning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")
# Running as root is Gyre's own business: what agents do happens in sandboxes, and tasks come from our own broker.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("gyre")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(related_name="jobs")
