"""`manage.py controller`: dispatches, orders and finishes runs. N copies may run; one leads."""

import signal
import threading
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand

from training.scheduling.controller import Controller


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = "Move every run on: dispatch groups, order steps, turn cells. Started by `up`; several copies are safe."

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()

        def end(number: int, frame: FrameType | None) -> None:
            stop.set()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        Controller().run(stop)
