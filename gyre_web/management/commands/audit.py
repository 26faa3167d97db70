"""`manage.py audit sandboxes [--clean] [--json]`: every sandbox of this host, and what of it should not be there."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from environments.sandboxes import reap
from environments.sandboxes.audit import Entry, list_sandboxes


class Command(BaseCommand):
    help = "List what Gyre has running on this host and where it deviates from its rows; --clean removes orphans."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="part", required=True)
        sandboxes = parts.add_parser(
            "sandboxes", help="Processes, containers, directories and kept images of sandboxes."
        )
        sandboxes.add_argument("--clean", action="store_true", help="End and remove orphans.")
        sandboxes.add_argument("--json", action="store_true", help="One JSON object instead of lines for people.")

    def handle(self, **options: Any) -> None:
        done = reap(at_once=True) if options["clean"] else []
        entries = list_sandboxes()
        orphans = [entry for entry in entries if entry.problem]
        if options["json"]:
            found = {"sandboxes": [asdict(entry) for entry in entries], "orphans": len(orphans), "cleaned": done}
            self.stdout.write(json.dumps(found, default=str))
        else:
            self._print(entries, done)
        if orphans:
            raise SystemExit(1)

    def _print(self, entries: list[Entry], done: list[str]) -> None:
        for line in done:
            self.stdout.write(line)
        for entry in entries:
            age = f"{entry.age_s:.0f} s" if entry.age_s is not None else "?"
            words = f"{entry.kind:<8} {entry.sandbox:<36} {entry.purpose or '-':<9} {age:>9}  {entry.owner}"
            self.stdout.write(f"{words}  {entry.problem}".rstrip())
        num_orphans = sum(bool(entry.problem) for entry in entries)
        self.stdout.write(f"{len(entries)} on this host, {num_orphans} orphans.")
        if num_orphans:
            self.stdout.write("`manage.py audit sandboxes --clean` ends and removes orphans.")
