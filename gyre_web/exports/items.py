"""From a filter, or from people's judgements, to the frozen items of a data set or an export.

From:  the Exports page, REST, commands: a filter of the rollout tables and perhaps a run.
To:    training.datasets, training.exports.services.
Holds: what people said of a rollout is taken as it stands now (the newest label of each person; where two disagree on
       keep or drop, nobody's word counts) and frozen with the item.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.review.models import Label
from gyre_web.review.pairs import agreed_pairs
from gyre_web.runs.rollout_filter import NAMES, apply_filter, parse_filter, rollouts_of
from training import datasets
from training.exports import services
from training.models import Dataset, Export, Run


class WrongFilter(ValueError):
    """By field, in words."""

    def __init__(self, errors: dict[str, list[str]]) -> None:
        super().__init__("; ".join(f"{name}: {' '.join(texts)}" for name, texts in errors.items()))
        self.errors = errors


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is chosen: a filter, of a run or of all."""

    query: dict[str, Any]
    run: Run | None = None

    @property
    def described(self) -> dict[str, Any]:
        """For provenance."""
        return {"run": self.run.name if self.run else None, **self.query}


def build_choice(query: Mapping[str, Any], run: Run | None) -> Choice:
    return Choice(query={name: query[name] for name in NAMES if query.get(name) not in (None, "")}, run=run)


def chosen_rollouts(choice: Choice) -> "QuerySet[Rollout]":
    """Ended ones, oldest first. Raises WrongFilter."""
    wanted = parse_filter(choice.query)
    if wanted.errors:
        raise WrongFilter(wanted.errors)
    base = rollouts_of(choice.run.attempts.all()) if choice.run else Rollout.objects.all()
    return apply_filter(base.filter(state=Rollout.State.ENDED), wanted).order_by("created_at", "pk")


def rollout_ids(choice: Choice) -> list[UUID]:
    return list(chosen_rollouts(choice).values_list("pk", flat=True)[: datasets.MOST_ITEMS + 1])


def rollout_items(choice: Choice) -> list[dict[str, Any]]:
    """{"rollout", "reward", "kept", "turns"} of each."""
    rows = chosen_rollouts(choice).values_list("pk", "reward", "member__effective_reward")
    found = list(rows[: services.MOST_ITEMS + 1])
    said = load_said([pk for pk, _, _ in found])
    return [
        {"rollout": str(pk), "reward": reward if override is None else override, **said.get(pk, NOTHING_SAID)}
        for pk, reward, override in found
    ]


NOTHING_SAID: dict[str, Any] = {"kept": None, "turns": {}}


def load_said(ids: Iterable[UUID]) -> dict[UUID, dict[str, Any]]:
    """kept: True, False, or None where nobody or not everybody says so; turns: marks that nobody contradicts."""
    labels: dict[UUID, list[Label]] = defaultdict(list)
    for label in Label.objects.filter(rollout__in=list(ids), superseded_by=None):
        labels[label.rollout_id].append(label)
    return {pk: {"kept": agreed_keep(own), "turns": agreed_turns(own)} for pk, own in labels.items()}


def agreed_keep(labels: list[Label]) -> bool | None:
    words = {label.keep for label in labels} - {Label.Keep.UNSET}
    return None if len(words) != 1 else words == {Label.Keep.KEEP}


def agreed_turns(labels: list[Label]) -> dict[str, bool]:
    marks: dict[str, set[bool]] = defaultdict(set)
    for label in labels:
        for node, mark in label.turns.items():
            marks[node].add(bool(mark))
    return {node: next(iter(found)) for node, found in marks.items() if len(found) == 1}


def pair_items(choice: Choice) -> list[dict[str, Any]]:
    pairs, _ = agreed_pairs(run_id=choice.run.pk if choice.run else None)
    return [
        {
            "chosen": str(pair.chosen), "rejected": str(pair.rejected), "judged_by": pair.judged_by,
            "reason": pair.reason, "judged_at": pair.judged_at.isoformat(),
        }
        for pair in pairs
    ]  # fmt: skip


def make_dataset(*, name: str, kind: str, choice: Choice, author: User) -> datasets.MadeDataset:
    """Raises WrongFilter, datasets.DatasetError."""
    if kind == Dataset.Kind.PAIRS:
        pairs, left_out = agreed_pairs(run_id=choice.run.pk if choice.run else None)
        made = datasets.make_pair_dataset(
            name=name, pairs=[(pair.chosen, pair.rejected) for pair in pairs], query=choice.described,
            made_by=author.username,
        )  # fmt: skip
        made = datasets.MadeDataset(dataset=made.dataset, left_out={**left_out, **made.left_out})
    elif kind == Dataset.Kind.ROLLOUTS:
        made = datasets.make_rollout_dataset(
            name=name, rollout_ids=rollout_ids(choice), query=choice.described, made_by=author.username
        )
    else:
        raise datasets.DatasetError("kind", f"Use one of {', '.join(Dataset.Kind.values)}.")
    record(author, "dataset.make", made.dataset, after={"name": name, "items": made.dataset.num_items})
    return made


def make_export(*, name: str, form: str, choice: Choice, author: User) -> Export:
    """Raises WrongFilter, services.ExportRefused."""
    items = pair_items(choice) if form == Export.Format.DPO else rollout_items(choice)
    export = services.make_export(name=name, form=form, items=items, query=choice.described, made_by=author.username)
    record(author, "export.make", export, after={"name": name, "format": form, "items": export.total})
    return export
