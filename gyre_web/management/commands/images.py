"""`manage.py images list|base|build`: what images there are, and making them before a rollout needs them."""

import json
import threading
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from environments.images.ensure import ensure_image, want_base, want_image
from environments.images.errors import ImageUnavailable
from environments.models import Image, Task
from environments.sandboxes import SandboxError


class Command(BaseCommand):
    help = "List images, make the local base image, or build all images of a task set."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        found = actions.add_parser("list", help="Every image that is known, with its state.")
        found.add_argument("--json", action="store_true")
        actions.add_parser("base", help="A small Debian from this machine's package source; needs root, once.")
        build = actions.add_parser("build", help="Have every image that the tasks of a set need.")
        build.add_argument("set")

    def handle(self, *args: Any, **options: Any) -> None:
        {"list": self.list, "base": self.base, "build": self.build}[options["action"]](options)

    def list(self, options: dict[str, Any]) -> None:
        names = ("reference", "host", "state", "origin", "image_id", "size_bytes", "stand_ins", "error")
        rows = [{name: getattr(row, name) for name in names} for row in Image.objects.defer("log")]
        if options["json"]:
            self.stdout.write(json.dumps(rows))
            return
        for row in rows:
            self.stdout.write(f"{row['state']:<9} {row['reference']} on {row['host']}  {row['error']}".rstrip())
        if not rows:
            self.stdout.write("No image yet.")

    def base(self, options: dict[str, Any]) -> None:
        self._make(want_base())

    def build(self, options: dict[str, Any]) -> None:
        tasks = list(Task.objects.filter(taskset__name=options["set"]).exclude(image="").order_by("name"))
        if not tasks:
            raise CommandError(f"No task of {options['set']} needs an image, or there is no such set.")
        failed = []
        for image in {row.pk: row for row in map(want_image, tasks)}.values():
            try:
                self._make(image)
            except CommandError as error:
                failed.append(str(error))
        if failed:
            raise CommandError("\n".join(failed))

    def _make(self, image: Image) -> None:
        """Waits, and shows the log as it grows."""
        shown = 0
        looked_at = 0.0

        def show() -> None:
            nonlocal shown, looked_at
            if time.monotonic() - looked_at < 1.0:
                return
            looked_at = time.monotonic()
            log = Image.objects.values_list("log", flat=True).get(pk=image.pk)
            connection.close()
            self.stdout.write(log[shown:], ending="")
            self.stdout.flush()
            shown = len(log)

        try:
            image_id = ensure_image(image, stop=threading.Event(), keep_alive=show)
        except (ImageUnavailable, SandboxError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{image.reference}: {image_id}")
