"""The new-run form, generated from the config tree: there is no second list of fields.

From:  training.config.RunConfig (names, types, defaults, bounds, descriptions) and the catalog (choices).
To:    sections of fields for the template; and back, from what a browser posts to plain data for check_config.
Holds: every field of the config is in the form, under its dotted name.
Never: judges a value; that is check_config's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from environments.models import Harness, Model, TaskSet
from training.config import SECTIONS_OF_KIND, RunConfig
from training.models import Dataset

GENERAL = "general"
KIND = "kind"
TITLES = {
    KIND: "Kind of run",
    "model": "Model",
    "tasks": "Tasks",
    "harness": "Harness",
    "sampling": "Sampling",
    "budgets": "Budgets of a rollout",
    "warm_start": "Warm start",
    "supervised": "Supervised",
    "preference": "Preferences",
    "objective": "Objective",
    "optimization": "Optimization",
    "schedule": "Schedule and cells",
    "engine": "Engine",
    "evaluation": "Evaluation",
    "review_gate": "Review gate",
    GENERAL: "Reproducibility",
}
LEADS = {
    KIND: "What the run does; the sections below are those that it reads.",
    "model": "The policy that learns.",
    "tasks": "What it practises on, and how many attempts at each are compared.",
    "harness": "The agent program that does the work, unmodified.",
    "sampling": "Imposed on every call, whatever the harness asks for.",
    "budgets": "When a rollout ends by itself. What is left then is scored.",
    "warm_start": "Imitate an expert first, so that there is something to reinforce.",
    "supervised": "Which recorded rollouts are imitated: the ones you kept, the ones that were rewarded, an expert's.",
    "preference": "Which judged pairs the model learns from (DPO).",
    "objective": "How rewards become credit, and credit becomes a loss.",
    "optimization": "How far each step goes, and how much memory it may take.",
    "schedule": "Who serves and who trains, and how old a rollout may be.",
    "engine": "The inference server.",
    "evaluation": "Tasks that measure the model; held-out ones are never trained on.",
    "review_gate": "Whether a person judges before the model learns.",
    GENERAL: "The same seed draws the same tasks in the same order.",
}
WORDS = {"taskset": "Task set", "kv": "KV", "kl": "KL", "tis": "TIS", "lora": "LoRA", "dtype": "dtype"}
"""Words of field names that are not written as words are."""
UNITS = {"_s": "s", "_gb": "GB", "_tokens": "tokens"}


@dataclass(frozen=True, kw_only=True)
class FormField:
    """One control. `name` is the dotted name in the config, `value` what the control shows."""

    name: str
    label: str
    description: str
    kind: Literal["number", "text", "choice", "suggest", "list"]
    value: str
    default: str
    bounds: str
    unit: str = ""
    whole: bool = False
    minimum: str = ""
    maximum: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class FormSection:
    name: str
    title: str
    lead: str
    fields: list[FormField]
    kinds: str = ""
    """Kinds of run that read it, apart by spaces; empty: all."""
    parts: list[list[FormField]] = field(default_factory=list)
    """Of the task mixture: one list of fields for each task set in it."""


def build_sections(data: Mapping[str, Any]) -> list[FormSection]:
    """The form for this config data (missing values: defaults)."""
    catalog = load_catalog()
    general: list[FormField] = []
    sections: list[FormSection] = []
    for name, info in RunConfig.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            sections.append(build_section(name, inner, data.get(name) or {}, catalog))
        else:
            general.append(build_field(name, info, data.get(name, info.default), catalog))
    kind = FormSection(
        name=KIND, title=TITLES[KIND], lead=LEADS[KIND], fields=[each for each in general if each.name == KIND]
    )
    rest = [each for each in general if each.name != KIND]
    return [kind, *sections, FormSection(name=GENERAL, title=TITLES[GENERAL], lead=LEADS[GENERAL], fields=rest)]


def kinds_of(section: str) -> str:
    """Kinds of run that read a section; empty where every kind does."""
    return " ".join(kind for kind, sections in SECTIONS_OF_KIND.items() if section in sections)


def build_section(
    name: str, config: type[BaseModel], data: Mapping[str, Any], catalog: Mapping[str, tuple[str, ...]]
) -> FormSection:
    fields: list[FormField] = []
    parts: list[list[FormField]] = []
    for key, info in config.model_fields.items():
        part = part_class(info)
        if part is None:
            fields.append(build_field(f"{name}.{key}", info, data.get(key, info.default), catalog))
            continue
        for index, entry in enumerate(data.get(key) or [item.model_dump() for item in info.default]):
            parts.append(
                [
                    build_field(
                        f"{name}.{key}.{index}.{inner}", inner_info, entry.get(inner, inner_info.default), catalog
                    )
                    for inner, inner_info in part.model_fields.items()
                ]
            )
    return FormSection(
        name=name,
        title=TITLES.get(name, name.capitalize()),
        lead=LEADS.get(name, ""),
        fields=fields,
        parts=parts,
        kinds=kinds_of(name),
    )


def part_class(info: FieldInfo) -> type[BaseModel] | None:
    """The class of a list of tables (the task mixture); None for any other field."""
    arguments = get_args(info.annotation)
    if get_origin(info.annotation) is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
        return arguments[0]
    return None


def load_catalog() -> dict[str, tuple[str, ...]]:
    """What can be chosen by name, by the last parts of the field's dotted name."""
    return {
        "model.name": tuple(Model.objects.values_list("name", flat=True)),
        "harness.name": tuple(Harness.objects.values_list("name", flat=True)),
        "supervised.dataset": dataset_names(Dataset.Kind.ROLLOUTS),
        "preference.dataset": dataset_names(Dataset.Kind.PAIRS),
        "taskset": tuple(TaskSet.objects.values_list("name", flat=True)),
    }


def dataset_names(kind: str) -> tuple[str, ...]:
    """With an empty choice first, so that nothing is chosen by itself."""
    names = tuple(Dataset.objects.filter(kind=kind).values_list("name", flat=True)[:500])
    return ("", *names) if names else ()


def build_field(name: str, info: FieldInfo, value: Any, catalog: Mapping[str, tuple[str, ...]]) -> FormField:
    last = name.rsplit(".", 1)[-1]
    kind, choices, whole, optional = kind_of(info)
    known = catalog.get(name) or catalog.get(last) or ()
    if known:
        kind, choices = "suggest", known
    minimum, maximum, bounds = bounds_of(info)
    unit = next((unit for suffix, unit in UNITS.items() if last.endswith(suffix)), "")
    return FormField(
        name=name,
        label=label_of(last),
        description=info.description or "",
        kind=kind,
        value=as_text(value),
        default=as_text(info.default),
        bounds=bounds,
        unit=unit,
        whole=whole,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        optional=optional,
    )


def kind_of(
    info: FieldInfo,
) -> tuple[Literal["number", "text", "choice", "suggest", "list"], tuple[str, ...], bool, bool]:
    """(kind, choices, whole number, may be empty)."""
    annotation: Any = info.annotation
    optional = get_origin(annotation) is UnionType and type(None) in get_args(annotation)
    if optional:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Literal:
        return "choice", get_args(annotation), False, optional
    if get_origin(annotation) is tuple:
        return "list", (), False, True
    if annotation in (int, float):
        return "number", (), annotation is int, optional
    return "text", (), False, optional


def bounds_of(info: FieldInfo) -> tuple[str, str, str]:
    """(smallest, largest, in words)."""
    words, smallest, largest = [], "", ""
    for rule in info.metadata:
        if isinstance(rule, Ge):
            smallest = as_text(rule.ge)
            words.append(f"at least {smallest}")
        elif isinstance(rule, Gt):
            words.append(f"more than {as_text(rule.gt)}")
        elif isinstance(rule, Le):
            largest = as_text(rule.le)
            words.append(f"at most {largest}")
        elif isinstance(rule, Lt):
            words.append(f"less than {as_text(rule.lt)}")
    return smallest, largest, ", ".join(words)


def label_of(name: str) -> str:
    for suffix in UNITS:
        if name.endswith(suffix) and name != suffix:
            name = name.removesuffix(suffix) if suffix != "_tokens" else name
    first, *rest = name.removeprefix("num_").split("_")
    return " ".join([WORDS.get(first, first.capitalize()), *(WORDS.get(word, word) for word in rest)])


def as_text(value: Any) -> str:
    """How a control shows a value: none is empty, lists by commas, floats as short as they can be."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(as_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def data_from_post(post: Mapping[str, str]) -> dict[str, Any]:
    """What a browser posts (dotted names, all text) as nested plain data; what is no number stays text.

    Fields that no config knows are kept, so that check_config names them.
    """
    data: dict[str, Any] = {}
    kinds = field_kinds()
    for name, text in post.items():
        if name.split(".")[0] not in RunConfig.model_fields:
            continue
        info = kinds.get(generic(name))
        value = text.strip()
        if info is not None and kind_of(info)[3] and kind_of(info)[0] != "list" and value == "":
            continue
        put(data, name.split("."), plain_value(info, value))
    return listed(data)


def plain_value(info: FieldInfo | None, text: str) -> Any:
    kind, _, whole, _ = kind_of(info) if info is not None else ("text", (), False, False)
    if kind == "list":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "number":
        try:
            return int(text) if whole else float(text)
        except ValueError:
            return text
    return text


def generic(name: str) -> str:
    """`tasks.mixture.1.weight` -> `tasks.mixture.*.weight`."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def field_kinds() -> dict[str, FieldInfo]:
    """Every leaf of the config tree by its generic dotted name."""
    found: dict[str, FieldInfo] = {}

    def walk(prefix: str, config: type[BaseModel]) -> None:
        for name, info in config.model_fields.items():
            inner = info.annotation
            part = part_class(info)
            if part is not None:
                walk(f"{prefix}{name}.*.", part)
            elif isinstance(inner, type) and issubclass(inner, BaseModel):
                walk(f"{prefix}{name}.", inner)
            else:
                found[prefix + name] = info

    walk("", RunConfig)
    return found


def put(data: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        data = inner
    data[path[-1]] = value


def listed(value: Any) -> Any:
    """Turn tables whose keys are all numbers into lists, in their order."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [listed(value[key]) for key in sorted(value, key=int)]
    return {key: listed(inner) for key, inner in value.items()}


def flat_values(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Config data as dotted names and the text of each control: what a pasted TOML fills the form with."""
    found: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= flat_values(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for index, item in enumerate(value):
                found |= flat_values(item, f"{prefix}{key}.{index}.")
        else:
            found[prefix + key] = as_text(value)
    return found
