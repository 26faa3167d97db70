"""`manage.py end_detached`: end what outlives a worker on purpose: sandboxes, engines, trainers. The last act of `up`."""

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import reap
from training.cells import end_detached


class Command(BaseCommand):
    help = "End every sandbox, engine and trainer of this machine that a worker left running for its successor."

    def handle(self, **options: Any) -> None:
        for line in end_detached():
            self.stdout.write(line)
        Sandbox.objects.filter(stopped_at=None).update(lease_expires_at=timezone.now())
        for line in reap():
            self.stdout.write(line)
