"""`manage.py demo`: start the demo's run, or do all of it without a browser and report."""

import json
import signal
import sys
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gyre_web.up.demo import (
    DemoError,
    build_report,
    follow,
    run_supervised,
    running_urls,
    some_system,
    start_demo,
)
from gyre_web.up.services import ServiceError
from gyre_web.up.supervisor import UpError, adopt_urls


class Command(BaseCommand):
    help = "A small model learns to use a shell. Without --headless the run is started in the system that `up` runs."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--headless", action="store_true", help="Start what is needed, follow it to its end, report."
        )
        parser.add_argument("--seed", type=int, default=1, help="Of tasks, initial states and the held-out choice.")
        parser.add_argument("--steps", type=int, help="Optimizer steps; the recipe's unless given.")
        parser.add_argument(
            "--no-supervised", action="store_true", help="Leave out the comparison with more imitation."
        )
        parser.add_argument("--json", action="store_true", help="Last line: one JSON object with all figures.")

    def handle(self, **options: Any) -> None:
        self.began = time.monotonic()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: engines must not be left behind
        try:
            if options["headless"]:
                self._headless(options)
            else:
                self._start(options)
        except (DemoError, UpError, ServiceError) as error:
            raise CommandError(str(error)) from error

    def say(self, text: str) -> None:
        """Progress goes to stderr, so that stdout ends with the result."""
        seconds = int(time.monotonic() - self.began)
        print(f"{seconds // 60:3d}:{seconds % 60:02d}  {text}", file=sys.stderr, flush=True)

    def _start(self, options: dict[str, Any]) -> None:
        urls = running_urls()
        if urls is None:
            raise CommandError("Nothing runs here. Start it with `manage.py up --demo`, or add --headless.")
        adopt_urls(urls)
        run = start_demo(seed=options["seed"], steps=options["steps"], say=self.say)
        self.stdout.write(f"/runs/{run.id}")

    def _headless(self, options: dict[str, Any]) -> None:
        with some_system(self.say):
            run = start_demo(seed=options["seed"], steps=options["steps"], say=self.say)
            attempt = follow(run.attempts.get(), self.say)
            if attempt.state != "completed":
                raise CommandError(f"The run was {attempt.get_state_display()} before its end.")
            report = build_report(attempt)
            if not options["no_supervised"]:
                report["supervised_same_time"] = run_supervised(attempt, self.say)
        self._print(report, as_json=options["json"])

    def _print(self, report: dict[str, Any], *, as_json: bool) -> None:
        low, high = report["interval"]
        self.stdout.write(
            f"held-out success {report['heldout_before']:.1%} -> {report['heldout_after']:.1%} on {report['n']} tasks "
            f"(gain {report['gain']:+.1%}, 95 % interval {low:+.1%} to {high:+.1%}) "
            f"after {report['steps']} steps in {report['seconds'] / 60:.1f} minutes"
        )
        if supervised := report.get("supervised_same_time"):
            self.stdout.write(f"the same time of supervised training: {supervised['heldout']:.1%}")
        if as_json:
            self.stdout.write(json.dumps(report))
