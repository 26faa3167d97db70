"""`manage.py up`: everything on this machine, until Ctrl-C."""

import signal
import threading
import time
import urllib.request
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from environments.catalog import ModelError
from environments.harnesses import HarnessMissing
from environments.tasksets import InvalidTask
from gyre_web.up.ports import free_port
from gyre_web.up.services import ServiceError
from gyre_web.up.supervisor import Supervisor, UpError, adopt_urls

FIRST_PAGE_TIMEOUT_S = 60.0


class Command(BaseCommand):
    help = "Start Gyre on this machine: services, web, gateway, workers, controller. Ctrl-C stops all of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="Address the web pages are served on.")
        parser.add_argument("--port", type=int, default=8000, help="Port of the web pages; the next free one if taken.")
        parser.add_argument("--rollouts", type=int, default=32, help="Rollouts that this machine drives at once.")
        parser.add_argument("--demo", action="store_true", help="Also start the demo run once everything is up.")
        parser.add_argument("--seed", type=int, default=1, help="Seed of the demo run.")

    def handle(self, **options: Any) -> None:
        began = time.monotonic()
        port = free_port(options["host"], options["port"])
        supervisor = Supervisor(
            host=options["host"],
            port=port,
            num_rollouts=options["rollouts"],
            log_path=Path(settings.DATA_DIR) / "up.log",
        )
        Path(settings.DATA_DIR).mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: supervisor.stopping.set())
        try:
            supervisor.start()
            if port != options["port"]:
                supervisor.say("up", f"port {options['port']} is taken; using {port}")
            self._greet(supervisor, began)
            if options["demo"]:
                threading.Thread(target=self._start_demo, args=(supervisor, options["seed"]), daemon=True).start()
            supervisor.watch()
        except (UpError, ServiceError) as error:
            raise CommandError(str(error)) from error
        finally:
            supervisor.stop()

    def _greet(self, supervisor: Supervisor, began: float) -> None:
        from gyre_web.accounts.services import first_admin_link

        deadline = time.monotonic() + FIRST_PAGE_TIMEOUT_S
        while time.monotonic() < deadline and not supervisor.stopping.wait(0.1):
            try:
                urllib.request.urlopen(supervisor.address + "/sign-in", timeout=5).close()
                break
            except OSError:
                continue
        supervisor.say("up", f"ready after {time.monotonic() - began:.1f} s at {supervisor.address}")
        adopt_urls(supervisor.urls)
        if link := first_admin_link():
            supervisor.say("up", f"sign in once, as admin, with {supervisor.address}{link}")

    def _start_demo(self, supervisor: Supervisor, seed: int) -> None:
        """Beside the supervision: making the model ready takes half a minute."""
        from gyre_web.up.demo import DemoError, start_demo

        try:
            run = start_demo(seed=seed, say=lambda text: supervisor.say("demo", text))
        except (DemoError, ModelError, InvalidTask, HarnessMissing, DatabaseError, OSError) as error:
            supervisor.say("demo", f"could not be started: {error}")
        else:
            supervisor.say("demo", f"watch it at {supervisor.address}/runs/{run.id}")
        finally:
            connection.close()
