"""Check a run config: everything that is wrong, at once, by dotted name, with what would be right.

From:  the form, TOML, REST and the command line, as plain data (training.services).
To:    a RunConfig, or FieldErrors that a person can act on.
Holds: one wrong field hides no other: rules over several fields and over the catalog are checked on what is
       valid, with defaults in the place of what is not.
Never: changes data, starts anything.
"""

import copy
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from environments.models import Harness, Model, Task, TaskSet
from training.config import RunConfig
from training.datasets import find_dataset
from training.models import Dataset, Version

Loc = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """One wrong field: its dotted name ("" for the whole), what is wrong, and what would be right."""

    field: str
    message: str
    remedy: str


def check_config(data: Mapping[str, Any]) -> tuple[RunConfig | None, list[FieldError]]:
    """The config, and nothing wrong; or None, and everything that is wrong."""
    if not isinstance(data, Mapping):
        return None, [FieldError(field="", message="A run config is a table of sections.", remedy=_sections())]
    config, errors = _parse(data)
    wrong = {error.field for error in errors}
    for error in (*_check_fields(config), *_check_catalog(config)):
        if not any(error.field == name or error.field.startswith(f"{name}.") for name in wrong):
            errors.append(error)
    return (None, errors) if errors else (config, [])


# Fields one by one: pydantic's errors in words.


def _parse(data: Mapping[str, Any]) -> tuple[RunConfig, list[FieldError]]:
    """The config with defaults in the place of wrong fields, and an error for each of those."""
    remaining = copy.deepcopy(dict(data))
    errors: list[FieldError] = []
    for _ in range(100):
        try:
            return RunConfig.model_validate(remaining), errors
        except ValidationError as failure:
            for detail in failure.errors(include_url=False):
                errors.append(_field_error(detail))
                _remove(remaining, detail["loc"])
    return RunConfig(), errors


def _remove(data: Any, loc: Loc) -> None:
    """Take a wrong value out; an element of a list takes the whole list with it."""
    for depth, key in enumerate(loc):
        if isinstance(data, dict) and key in data:
            if depth == len(loc) - 1 or not isinstance(data[key], dict | list):
                del data[key]
                return
            if isinstance(data[key], list) and not _has_dict_at(data[key], loc[depth + 1 :]):
                del data[key]
                return
            data = data[key]
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return


def _has_dict_at(items: list[Any], rest: Loc) -> bool:
    """Whether the error lies inside a table of this list, so that only that table's field must go."""
    return (
        len(rest) > 1
        and isinstance(rest[0], int)
        and rest[0] < len(items)
        and isinstance(items[rest[0]], dict)
        and rest[1] in items[rest[0]]
    )


def _field_error(detail: ErrorDetails) -> FieldError:
    field = ".".join(str(part) for part in detail["loc"])
    context = detail.get("ctx", {})
    if field == "tasks.rollouts_per_group" and detail["type"] == "greater_than_equal":
        return FieldError(
            field=field,
            message=f"A group of {detail['input']} has nothing to compare with.",
            remedy="Use at least 2.",
        )
    match detail["type"]:
        case "extra_forbidden":
            return FieldError(field=field, message="There is no such field.", remedy=_closest(detail["loc"]))
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            message = f"{detail['input']!r} is out of bounds. {_sentence(detail['msg'])}"
            return FieldError(field=field, message=message, remedy=_bounds(context))
        case "literal_error":
            return FieldError(
                field=field, message=f"{detail['input']!r} is not a choice.", remedy=f"Use {context['expected']}."
            )
        case _:
            return FieldError(
                field=field, message=_sentence(detail["msg"]), remedy=f"The default is {_default(detail['loc'])}."
            )


def _bounds(context: Mapping[str, Any]) -> str:
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    return "Use " + " and ".join(f"{words[key]} {value}" for key, value in context.items() if key in words) + "."


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _section_at(loc: Loc) -> type[BaseModel] | None:
    """The config class in which the field named by the last part of `loc` would be."""
    section: type[BaseModel] = RunConfig
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        info = section.model_fields.get(part)
        inner = _inner_class(info.annotation) if info else None
        if inner is None:
            return None
        section = inner
    return section


def _inner_class(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _closest(loc: Loc) -> str:
    section = _section_at(loc)
    names = list(section.model_fields) if section else []
    near = difflib.get_close_matches(str(loc[-1]), names, n=1)
    return f"Did you mean {near[0]}?" if near else f"Remove it. Here are: {', '.join(names)}."


def _default(loc: Loc) -> str:
    section = _section_at(loc)
    info = section.model_fields.get(str(loc[-1])) if section else None
    if info is None or isinstance(info.default, BaseModel):
        return "a table of its fields"
    return "none" if info.default is None else repr(info.default)


def _sections() -> str:
    return f"Its sections are: {', '.join(RunConfig.model_fields)}."


# Several fields together.


def _check_fields(config: RunConfig) -> Iterator[FieldError]:
    if config.kind == "rl":
        yield from _check_sampling(config)
    yield from _check_budgets(config)
    yield from _check_schedule(config)
    yield from _check_kind(config)
    yield from _check_objective(config)


def _check_kind(config: RunConfig) -> Iterator[FieldError]:
    if config.kind == "evaluation" and config.evaluation.tasks == 0:
        yield FieldError(
            field="evaluation.tasks",
            message="An evaluation run without evaluation tasks measures nothing.",
            remedy="Use at least 1.",
        )
    if config.kind != "evaluation" and config.evaluation.split != "heldout":
        yield FieldError(
            field="evaluation.split",
            message="A run that trains would be measured on what it may have trained on.",
            remedy="Use heldout; or start an evaluation run.",
        )


def _check_sampling(config: RunConfig) -> Iterator[FieldError]:
    sampling = config.sampling
    needs_mask = "needs the engine's sampling mask recorded with each token, which is not built yet: the trainer's"
    if sampling.top_k != -1:
        yield FieldError(
            field="sampling.top_k",
            message=f"Top-k in reinforcement learning {needs_mask} probabilities would not be the engine's.",
            remedy="Use -1 (off).",
        )
    if sampling.top_p < 1.0:
        yield FieldError(
            field="sampling.top_p",
            message=f"Top-p in reinforcement learning {needs_mask} probabilities would not be the engine's.",
            remedy="Use 1.0 (off).",
        )
    if sampling.temperature == 0.0:
        yield FieldError(
            field="sampling.temperature",
            message="Greedy sampling gives a group of equal rollouts, which teaches nothing.",
            remedy="Use more than 0; 1.0 is usual.",
        )


def _check_budgets(config: RunConfig) -> Iterator[FieldError]:
    budgets = config.budgets
    if config.sampling.max_tokens > budgets.max_sampled_tokens:
        yield FieldError(
            field="sampling.max_tokens",
            message=f"One turn may sample more than a whole rollout may ({budgets.max_sampled_tokens}).",
            remedy="Lower it, or raise budgets.max_sampled_tokens.",
        )
    if config.sampling.max_tokens >= budgets.max_context_tokens:
        yield FieldError(
            field="budgets.max_context_tokens",
            message=f"An answer of {config.sampling.max_tokens} tokens leaves no room for a prompt.",
            remedy="Raise it above sampling.max_tokens.",
        )
    if budgets.max_context_tokens > config.engine.max_context_tokens:
        yield FieldError(
            field="engine.max_context_tokens",
            message=f"The engine would refuse contexts that a rollout may reach ({budgets.max_context_tokens}).",
            remedy="Raise it to budgets.max_context_tokens, or lower that.",
        )
    if budgets.wall_time_s > budgets.overall_time_s:
        yield FieldError(
            field="budgets.overall_time_s",
            message=f"Ends before the harness's own time ({budgets.wall_time_s:g} s): nothing would be scored.",
            remedy="Use more than budgets.wall_time_s, with room for the verifier.",
        )


def _check_schedule(config: RunConfig) -> Iterator[FieldError]:
    schedule = config.schedule
    if schedule.cells > 1:
        yield FieldError(
            field="schedule.cells",
            message="Several cells (satellites that join a step) are not built yet.",
            remedy="Use 1.",
        )
    if schedule.mode == "async":
        yield FieldError(
            field="schedule.mode",
            message="async splits cells into some that serve and some that train; it needs several cells, "
            "which are not built yet.",
            remedy="Use colocate, sync or elastic.",
        )
    if schedule.mode == "sync" and (schedule.staleness or schedule.lead_groups):
        yield FieldError(
            field="schedule.staleness" if schedule.staleness else "schedule.lead_groups",
            message="sync dispatches nothing ahead of the version that it will train.",
            remedy="Use 0, or another mode.",
        )
    if schedule.min_members > config.tasks.rollouts_per_group:
        yield FieldError(
            field="schedule.min_members",
            message=f"A group has only {config.tasks.rollouts_per_group} members.",
            remedy=f"Use at most {config.tasks.rollouts_per_group}.",
        )


def _check_objective(config: RunConfig) -> Iterator[FieldError]:
    objective = config.objective
    if config.kind == "preference" and config.optimization.devices > 1:
        yield FieldError(
            field="optimization.devices",
            message="Learning from pairs is not divided among devices yet.",
            remedy="Use 1.",
        )
    if objective.overlong == "soft" and objective.overlong_buffer_tokens > config.budgets.max_sampled_tokens:
        yield FieldError(
            field="objective.overlong_buffer_tokens",
            message=f"The penalty would begin before the first token: a rollout samples at most "
            f"{config.budgets.max_sampled_tokens}.",
            remedy="Use at most budgets.max_sampled_tokens.",
        )
    if objective.kl_coefficient and objective.kl_in == "loss" and objective.kl_estimator == "k1":
        yield FieldError(
            field="objective.kl_estimator",
            message="k1 in the loss has no gradient in expectation: it would only add noise.",
            remedy='Use k2 or k3, or objective.kl_in = "reward".',
        )


# The catalog.


def _check_catalog(config: RunConfig) -> Iterator[FieldError]:
    yield from _check_model(config)
    yield from _check_tasks(config)
    yield from _check_dataset(config)
    harnesses = list(Harness.objects.values_list("name", flat=True))
    if config.harness.name not in harnesses:
        yield _unknown("harness.name", "harness", config.harness.name, harnesses, "Harnesses")


def _check_dataset(config: RunConfig) -> Iterator[FieldError]:
    """A supervised or preference run learns from a data set of its kind."""
    wanted = {
        "supervised": (config.supervised.dataset, Dataset.Kind.ROLLOUTS),
        "preference": (config.preference.dataset, Dataset.Kind.PAIRS),
    }.get(config.kind)
    if wanted is None:
        return
    name, kind = wanted
    if find_dataset(name, kind) is None:
        known = list(Dataset.objects.filter(kind=kind).values_list("name", flat=True)[:20])
        yield FieldError(
            field=f"{config.kind}.dataset",
            message=f"There is no data set of {kind.label} called {name!r}." if name else "No data set is named.",
            remedy=f"Use one of: {', '.join(known)}." if known else "Make one on the Exports page.",
        )


def _unknown(field: str, noun: str, name: str, known: list[str], page: str) -> FieldError:
    choices = f"Use one of: {', '.join(known)}; or add it under {page}." if known else f"Add it under {page}."
    return FieldError(field=field, message=f"The catalog has no {noun} called {name!r}.", remedy=choices)


def _check_model(config: RunConfig) -> Iterator[FieldError]:
    model = Model.objects.filter(name=config.model.name).first()
    if model is None:
        yield _unknown(
            "model.name",
            "model",
            config.model.name,
            list(Model.objects.values_list("name", flat=True)),
            "Models",
        )
    else:
        if Path(model.path).is_absolute() and not Path(model.path).is_dir():
            yield FieldError(
                field="model.name",
                message=f"{model.name}'s directory is not there: {model.path}.",
                remedy="Put it back, or give the model another path under Models.",
            )
        if config.budgets.max_context_tokens > model.context_length:
            yield FieldError(
                field="budgets.max_context_tokens",
                message=f"{config.budgets.max_context_tokens} is beyond the context of {model.name}.",
                remedy=f"Use at most {model.context_length}.",
            )
        if config.engine.max_context_tokens > model.context_length:
            yield FieldError(
                field="engine.max_context_tokens",
                message=f"{config.engine.max_context_tokens} is beyond the context of {model.name}.",
                remedy=f"Use at most {model.context_length}.",
            )
    if config.model.start_from and find_version(config.model.start_from) is None:
        yield FieldError(
            field="model.start_from",
            message=f"There is no version {config.model.start_from!r} with weights on disk.",
            remedy="Write <run name>/<attempt>/<version>, for example my-run/1/9; or leave it empty.",
        )


def find_version(address: str) -> Version | None:
    """The version that <run name>/<attempt>/<version> names, if its weights are still on disk."""
    parts = address.rsplit("/", 2)
    if len(parts) != 3 or not all(part.isdecimal() for part in parts[1:]):
        return None
    run, attempt, number = parts
    version = Version.objects.filter(
        attempt__run__name=run, attempt__number=int(attempt), number=int(number), path__gt=""
    ).first()
    return version if version and Path(version.path).is_dir() else None


def _check_tasks(config: RunConfig) -> Iterator[FieldError]:
    known = list(TaskSet.objects.values_list("name", flat=True))
    num_heldout = 0
    for index, part in enumerate(config.tasks.mixture):
        field = f"tasks.mixture.{index}"
        if part.taskset not in known:
            yield _unknown(f"{field}.taskset", "task set", part.taskset, known, "Tasks")
            continue
        tasks = Task.objects.filter(taskset__name=part.taskset)
        families = set(tasks.order_by().values_list("family", flat=True).distinct())
        for family in part.families:
            if family not in families:
                yield FieldError(
                    field=f"{field}.families",
                    message=f"{part.taskset} has no family {family!r}.",
                    remedy=f"Its families: {', '.join(sorted(families))}.",
                )
        if part.families:
            tasks = tasks.filter(family__in=part.families)
        if config.kind == "rl" and not tasks.filter(split=Task.Split.TRAIN).exists():
            yield FieldError(
                field=f"{field}.taskset",
                message=f"{part.taskset} has no matching task to train on.",
                remedy="Choose other families or another task set; held-out tasks are never trained on.",
            )
        if config.harness.sandbox == "process" and (image := tasks.exclude(image="").first()):
            yield FieldError(
                field="harness.sandbox",
                message=f"{part.taskset} needs container images (task {image.name}: {image.image}), which process "
                "sandboxes do not have.",
                remedy="Use auto or docker, or choose tasks without an image.",
            )
        num_heldout += tasks.filter(split=config.evaluation.split).count()
    if config.evaluation.tasks > num_heldout and all(part.taskset in known for part in config.tasks.mixture):
        word = "held-out" if config.evaluation.split == "heldout" else "training"
        yield FieldError(
            field="evaluation.tasks",
            message=f"{config.evaluation.tasks} {word} tasks are wanted; the task sets have {num_heldout}.",
            remedy=f"Use at most {num_heldout}.",
        )
