"""A run config as TOML and back, and what differs between two configs.

Holds: config_from_toml(config_to_toml(c)) == c; a syntax error names its line.
"""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import tomli_w
from pydantic import BaseModel

from training.config import RunConfig
from training.config_checks import FieldError, check_config

AT_LINE = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)$")


class TomlError(ValueError):
    """The text is not TOML. `line` and `column` count from 1."""

    def __init__(self, *, line: int, column: int, problem: str) -> None:
        super().__init__(f"Line {line}, column {column}: {problem}.")
        self.line = line
        self.column = column


def toml_to_data(text: str) -> dict[str, Any]:
    """The text as plain data, not checked yet. Raises TomlError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        where = AT_LINE.search(problem)
        lines = text.splitlines() or [""]
        line, column = len(lines), len(lines[-1]) + 1
        if where and where[1]:
            line, column = int(where[1]), int(where[2])
        raise TomlError(line=line, column=column, problem=AT_LINE.sub("", problem).strip()) from error


def config_from_toml(text: str) -> tuple[RunConfig | None, list[FieldError]]:
    """Like check_config; text that is not TOML is one error of field "" that names the line."""
    try:
        data = toml_to_data(text)
    except TomlError as error:
        return None, [FieldError(field="", message=f"This is not TOML. {error}", remedy="Correct that line.")]
    return check_config(data)


def config_to_toml(config: RunConfig) -> str:
    """Every field with its value; what is none is left out, since TOML has no word for it."""
    return tomli_w.dumps(_without_none(config.model_dump(mode="json")))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def differences(config: RunConfig, base: RunConfig | None = None) -> list[tuple[str, Any, Any]]:
    """(dotted name, value, the base's value) of each field that differs; the base is the defaults unless given."""
    return list(_differences("", config, base or RunConfig()))


def _differences(prefix: str, config: BaseModel, base: BaseModel) -> Iterator[tuple[str, Any, Any]]:
    for name in type(config).model_fields:
        value, other = getattr(config, name), getattr(base, name)
        if isinstance(value, BaseModel):
            yield from _differences(f"{prefix}{name}.", value, other)
        elif value != other:
            yield f"{prefix}{name}", _plain(value), _plain(other)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value
