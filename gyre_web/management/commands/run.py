"""`manage.py run NAME --config FILE`: start a run from TOML, as the form and REST do, with the same checks."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gyre_web.up.demo import running_urls
from gyre_web.up.supervisor import adopt_urls
from training.services import NameTaken, config_from_toml, config_to_toml, start_run


class Command(BaseCommand):
    help = "Start a run from a TOML config; what the file leaves out has its default. Every wrong field is named."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="Name of the run.")
        parser.add_argument("--config", required=True, help="TOML file; `-` reads standard input.")
        parser.add_argument("--check", action="store_true", help="Only check it, and print it with every default.")

    def handle(self, **options: Any) -> None:
        if not settings.DATABASE_URL:
            urls = running_urls()
            if urls is None:
                raise CommandError("Nothing runs here. Start it with `manage.py up`, or set DATABASE_URL.")
            adopt_urls(urls)
        config, errors = config_from_toml(read_text(options["config"]))
        if config is None:
            lines = [f"{error.field or 'config'}: {error.message} {error.remedy}" for error in errors]
            raise CommandError(f"{len(errors)} wrong:\n" + "\n".join(lines))
        if options["check"]:
            self.stdout.write(config_to_toml(config))
            return
        try:
            attempt = start_run(name=options["name"], config=config)
        except NameTaken as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"/runs/{attempt.run_id}")


def read_text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{name} cannot be read: {error}") from error
