"""Typed readers of environment variables; deployment settings come from nowhere else.

A secret `NAME` may also be given as a file through `NAME_FILE`. Every reader raises
`ImproperlyConfigured` that names the variable and what would be right.
"""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

TRUE_WORDS = {"1", "true", "yes", "on"}
FALSE_WORDS = {"0", "false", "no", "off", ""}


def env_str(name: str, default: str = "") -> str:
    """The variable's text, or the content of the file that `NAME_FILE` points to."""
    path = os.environ.get(f"{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE={path} cannot be read: {error.strerror}.") from error
    return os.environ.get(name, default)


def env_int(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={text!r} must be a whole number.") from error


def env_bool(name: str, default: bool) -> bool:
    text = os.environ.get(name)
    if text is None:
        return default
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise ImproperlyConfigured(f"{name}={text!r} must be one of 1, 0, true, false.")


def env_list(name: str, default: list[str]) -> list[str]:
    text = os.environ.get(name)
    return default if text is None else [part.strip() for part in text.split(",") if part.strip()]


def env_path(name: str, default: Path) -> Path:
    return Path(os.environ.get(name) or default)
