"""`manage.py images list|base|build|prune`: what there is, making it before a rollout needs it, being rid of it."""

import json
import threading
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from environments.images.ensure import ensure_image, want_base, want_image
from environments.images.errors import ImageUnavailable
from environments.images.pruning import Stale, find_stale, remove
from environments.models import Image, Task
from environments.sandboxes import SandboxError
from environments.sandboxes.engine_client import why_unreachable


class Command(BaseCommand):
    help = "List images, make the local base image, build all images of a task set, or remove what nobody wants."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        found = actions.add_parser("list", help="Every image that is known, with its state.")
        found.add_argument("--json", action="store_true")
        actions.add_parser("base", help="A small Debian from this machine's package source; needs root, once.")
        build = actions.add_parser("build", help="Have every image that the tasks of a set need.")
        build.add_argument("set")
        prune = actions.add_parser(
            "prune", help="Show what Gyre made or pulled on this host and nobody wanted for a while; --yes removes it."
        )
        prune.add_argument("--days", type=float, default=30.0, help="Not wanted for so long; at least an hour.")
        prune.add_argument("--yes", action="store_true", help="Remove it. What is wanted again is made again.")
        prune.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        actions = {"list": self.list, "base": self.base, "build": self.build, "prune": self.prune}
        actions[options["action"]](options)

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

    def prune(self, options: dict[str, Any]) -> None:
        try:
            found = find_stale(timedelta(days=options["days"]))
            kept = {stale.key: remove(stale) for stale in found} if options["yes"] else {}
        except SandboxError as error:
            raise CommandError(str(error)) from error
        report = self._print_json if options["json"] else self._print_stale
        report(found, kept, why_unreachable() or "")

    def _print_json(self, found: Sequence[Stale], kept: dict[str, str], no_engine: str) -> None:
        gone = [stale for stale in found if kept.get(stale.key) == ""]
        rows = [asdict(stale) | {"removed": stale in gone, "kept": kept.get(stale.key, "")} for stale in found]
        report = {"stale": rows, "removed_bytes": sum(stale.size_bytes for stale in gone), "no_engine": no_engine}
        self.stdout.write(json.dumps(report, default=str))

    def _print_stale(self, found: Sequence[Stale], kept: dict[str, str], no_engine: str) -> None:
        if no_engine:
            self.stderr.write(f"Only bundles were looked at. {no_engine}")
        for stale in found:
            reason = kept.get(stale.key)
            self.stdout.write(f"{describe(stale)}  {'kept: ' + reason if reason else ''}".rstrip())
        gone = [stale for stale in found if kept.get(stale.key) == ""]
        if kept:
            self.stdout.write(f"{len(gone)} removed, {megabytes(gone)} (images share layers: less may come free).")
        elif found:
            self.stdout.write(f"{len(found)} could be removed, {megabytes(found)}. Nothing was; --yes does it.")
        else:
            self.stdout.write("Nothing to remove.")

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


def describe(stale: Stale) -> str:
    wanted = stale.wanted_at.date().isoformat() if stale.wanted_at else "never"
    return f"{stale.kind:<7} {stale.size_bytes / 1e6:>9.1f} MB  last wanted {wanted}  {stale.name}"


def megabytes(stale: Sequence[Stale]) -> str:
    return f"{sum(one.size_bytes for one in stale) / 1e6:.1f} MB"
