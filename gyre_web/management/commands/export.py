"""`manage.py export RUN/ATTEMPT/VERSION DIR`: a version as a Hugging Face folder with its provenance."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Write a version's weights, tokenizer and provenance into a new directory."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("version", help="RUN/ATTEMPT/VERSION, for example demo/1/9.")
        parser.add_argument("directory", type=Path, help="Created; must not hold anything.")

    def handle(self, *args: Any, **options: Any) -> None:
        from training.export import ExportError, export_version, find_version

        try:
            version = find_version(options["version"])
            size = export_version(version, options["directory"])
        except ExportError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{options['directory']}: {size / 1e6:.0f} MB, {options['version']}, a Hugging Face directory"
        )
