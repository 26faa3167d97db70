"""`manage.py end_detached`: end what outlives a worker on purpose (sandboxes, engines); the last act of `manage.py up`."""

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from environments.models import Engine, Sandbox
from environments.sandboxes import reap
from training.engines import attach_engine


class Command(BaseCommand):
    help = "End every sandbox and engine of this machine that a worker left running for its successor."

    def handle(self, **options: Any) -> None:
        for row in Engine.objects.exclude(state__in=(Engine.State.STOPPED, Engine.State.FAILED)):
            if engine := attach_engine(row):
                engine.stop()
                self.stdout.write(f"engine {row.name} ended")
        Sandbox.objects.filter(stopped_at=None).update(lease_expires_at=timezone.now())
        for line in reap():
            self.stdout.write(line)
