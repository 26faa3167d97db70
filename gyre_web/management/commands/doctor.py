"""`manage.py doctor [--json]`: exit code 1 if something needed is missing."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from gyre_web.up.doctor import as_json, examine

GLYPHS = {"ok": "✓", "degraded": "~", "missing": "✗"}


class Command(BaseCommand):
    help = "Say what this machine has, what is missing, and what each missing part costs."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="One JSON object instead of lines for people.")

    def handle(self, **options: Any) -> None:
        findings = examine()
        summary = as_json(findings)
        if options["json"]:
            self.stdout.write(json.dumps(summary))
        for finding in findings if not options["json"] else []:
            self.stdout.write(f"{GLYPHS[finding.state]} {finding.name:<14} {finding.detail}")
            for word, text in (("costs", finding.cost), ("do", finding.remedy)):
                if text:
                    self.stdout.write(f"  {'':<14} {word}: {text}")
        if not summary["ok"]:
            raise SystemExit(1)
