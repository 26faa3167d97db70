"""The form of a harness, generated from its program's settings class: there is no second list of fields.

From:  environments.harnesses (settings classes), an existing Harness to copy, what a browser posts.
To:    controls for the template; plain settings for gyre_web.catalog.services.add_harness.
Never: judges a value; the settings class does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from environments.harnesses import HARNESSES
from gyre_web.runs.form_fields import bounds_of, label_of

Kind = Literal["number", "text", "lines", "choice", "json"]
LONG = {"command", "system_prompt", "format_error"}


@dataclass(frozen=True, kw_only=True)
class Control:
    name: str
    label: str
    help: str
    kind: Kind
    value: str
    default: str
    bounds: str
    choices: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def build_controls(
    program: str, values: Mapping[str, Any], problems: Mapping[str, list[str]] | None = None
) -> list[Control]:
    """values: settings, or the texts that were posted."""
    fields = HARNESSES[program].settings_class.model_fields
    return [build_control(name, info, values, (problems or {}).get(name, [])) for name, info in fields.items()]


def build_control(name: str, info: FieldInfo, values: Mapping[str, Any], errors: list[str]) -> Control:
    default = "" if info.default is PydanticUndefined else as_text(info.default)
    kind, choices = kind_of(name, info)
    return Control(
        name=name,
        label=label_of(name),
        help=info.description or "",
        kind=kind,
        value=as_text(values[name]) if name in values else default,
        default=default,
        bounds=bounds_of(info)[2],
        choices=choices,
        errors=tuple(errors),
    )


def kind_of(name: str, info: FieldInfo) -> tuple[Kind, tuple[str, ...]]:
    annotation: Any = info.annotation
    if get_origin(annotation) is Literal:
        return "choice", get_args(annotation)
    if annotation is bool:
        return "choice", ("true", "false")
    if annotation in (int, float):
        return "number", ()
    if annotation is str:
        return ("lines" if name in LONG else "text"), ()
    return "json", ()


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=1 if isinstance(value, dict) and value else None)


def settings_from_post(program: str, post: Mapping[str, str]) -> dict[str, Any]:
    """What differs from the defaults, as plain data; what cannot be read stays text, for the check to name."""
    settings: dict[str, Any] = {}
    for name, info in HARNESSES[program].settings_class.model_fields.items():
        text = post.get(f"settings.{name}")
        if text is None:
            continue
        kind, _ = kind_of(name, info)
        value = read_text(kind, info, text.replace("\r\n", "\n"))
        if value != info.default:
            settings[name] = value
    return settings


def read_text(kind: Kind, info: FieldInfo, text: str) -> Any:
    if kind in ("json", "number") or info.annotation is bool:
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
