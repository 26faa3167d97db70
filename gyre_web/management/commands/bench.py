"""`manage.py bench NAME [--quick] [--json]`: measure, print a short table and, last, one JSON line.

From:  a person or CI.
To:    gyre_web.bench.<NAME>.run(quick) -> dict with `name`, raw figures and `ok`.
"""

import importlib
import json
import pkgutil
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

import gyre_web.bench


def bench_names() -> list[str]:
    """Modules of gyre_web.bench that have a `run`."""
    names = [module.name for module in pkgutil.iter_modules(gyre_web.bench.__path__) if module.name[0] != "_"]
    return [name for name in names if hasattr(importlib.import_module(f"gyre_web.bench.{name}"), "run")]


class Command(BaseCommand):
    help = "Measure a part of Gyre; the last line printed is JSON."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", help="Which bench; without it, all names are listed.")
        parser.add_argument("--quick", action="store_true", help="Shorter rounds; figures are noisier.")
        parser.add_argument("--json", action="store_true", help="Only the JSON line.")

    def handle(self, *args: Any, name: str | None, quick: bool, json: bool, **options: Any) -> None:
        names = bench_names()
        if name is None:
            self.stdout.write("\n".join(names))
            return
        if name not in names:
            raise CommandError(f"There is no bench {name!r}. Known: {', '.join(names)}.")
        result = importlib.import_module(f"gyre_web.bench.{name}").run(quick=quick)
        if not json:
            self.stdout.write(format_table(result))
        self.stdout.write(dump(result))


def dump(result: dict[str, Any]) -> str:
    return json.dumps(result, separators=(",", ":"))


def format_table(result: dict[str, Any], indent: str = "") -> str:
    """`name  value` lines; nested figures are indented, lists are left to the JSON line."""
    lines = []
    width = max((len(str(key)) for key in result), default=0)
    for key, value in result.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}", format_table(value, indent + "  ")]
        elif not isinstance(value, list):
            shown = f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else value
            shown = f"{value:.0f}" if isinstance(value, float) and abs(value) >= 100 else shown
            lines.append(f"{indent}{key!s:{width}}  {shown}")
    return "\n".join(lines)
