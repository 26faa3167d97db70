"""`manage.py config_reference`: docs/reference/config.md, written from the config tree so that the two cannot differ."""

from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from django.conf import settings
from django.core.management.base import BaseCommand
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from training.config import RunConfig

HEAD = """# Run config

Written by `manage.py config_reference` from `training/config.py`. In TOML a section is a table: `[schedule]`.
Unknown fields are refused; everything wrong is reported at once, by its dotted name.
"""


def build_reference() -> str:
    lines = [HEAD, "| field | default | bounds | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | `{default}` | {bounds} | {meaning} |" for name, default, bounds, meaning in rows(RunConfig, "")
    ]
    return "\n".join(lines) + "\n"


def rows(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from rows(field.annotation, f"{prefix}{name}.")
            continue
        inner = [part for part in get_args(field.annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
        if inner:
            yield from rows(inner[0], f"{prefix}{name}[].")
        else:
            yield f"{prefix}{name}", toml_value(field.default), bounds_of(field), field.description or ""


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def bounds_of(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "at least", "max_length": "at most"}
    found = [
        f"{sign} {getattr(part, key)}" for part in field.metadata for key, sign in signs.items() if hasattr(part, key)
    ]
    return ", ".join(found)


class Command(BaseCommand):
    help = "Write docs/reference/config.md from the config tree."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Only say, by exit code, whether it is up to date.")

    def handle(self, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "reference" / "config.md"
        if options["check"]:
            raise SystemExit(
                0 if path.read_text() == build_reference() else f"{path} is out of date: manage.py config_reference"
            )
        path.write_text(build_reference())
