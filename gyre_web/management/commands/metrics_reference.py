"""`manage.py metrics_reference`: write docs/reference/metrics.md from training.metric_definitions."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from training.metric_definitions import DEFINITIONS

HEAD = """# Metrics

Written by `manage.py metrics_reference` from `training/metric_definitions.py`. Every number is stored by step and kind
(`policy`, `supervised`, `preference`, `evaluation`), charted or listed on the run's page, and goes out as CSV or JSON
(buttons there; `/api/runs/<id>/metrics.csv`), and as TensorBoard event files where `GYRE_TENSORBOARD` names a directory.
A key with a part after a slash is a series of its own: `reward_mean/<family>`, `reward_mean/taskset:<name>`,
`reward_mean/harness:<name>`, `reward_hist/<tenth>`, `excluded/<reason>`, `pass_at/<k>`.

| key | name | unit | meaning | how computed |
|---|---|---|---|---|
"""


class Command(BaseCommand):
    help = "Write the reference of all metrics."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--output", default=str(Path(settings.BASE_DIR) / "docs" / "reference" / "metrics.md"))

    def handle(self, **options: Any) -> None:
        rows = [
            f"| `{key}` | {known.label} | {known.unit} | {cell(known.meaning)} | {cell(known.how)} |"
            for key, known in DEFINITIONS.items()
        ]
        Path(options["output"]).write_text(HEAD + "\n".join(rows) + "\n")


def cell(text: str) -> str:
    return text.replace("|", "\\|")
