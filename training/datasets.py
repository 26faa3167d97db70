"""Make data sets: frozen selections of rollouts, or of judged pairs, for supervised and preference runs.

From:  gyre_web.exports (a filter of the rollout tables, people's preferences), after rights were checked.
To:    Dataset rows; training.offline reads them.
Holds: what is in a data set can be trained: its rollouts have ended and have sampled tokens that may be trained;
       what was asked for and left out is counted by reason, never silently.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from environments.models import Node, Rollout
from training.models import Dataset

MOST_ITEMS = 200_000


class DatasetError(ValueError):
    """A data set cannot be made. `field`: what of the form or the request is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class MadeDataset:
    """left_out: how many of those asked for are not in it, by reason."""

    dataset: Dataset
    left_out: dict[str, int] = field(default_factory=dict)


def trainable(rollout_ids: Sequence[UUID]) -> tuple[set[UUID], dict[str, int]]:
    """Those that can be trained, and how many cannot, by reason."""
    ended = set(
        Rollout.objects.filter(pk__in=rollout_ids, state=Rollout.State.ENDED).order_by().values_list("pk", flat=True)
    )
    nodes = Node.objects.filter(rollout__in=ended, sampled=True, trainable=True).order_by()
    with_tokens = set(nodes.values_list("rollout_id", flat=True).distinct())
    left_out = {"not ended": len(set(rollout_ids) - ended), "no trainable token": len(ended - with_tokens)}
    return with_tokens, {reason: number for reason, number in left_out.items() if number}


def make_rollout_dataset(
    *, name: str, rollout_ids: Sequence[UUID], query: dict[str, Any], made_by: str = ""
) -> MadeDataset:
    """In the order given, each once. Raises DatasetError."""
    good, left_out = trainable(rollout_ids)
    items = [str(pk) for pk in dict.fromkeys(rollout_ids) if pk in good]
    if not items:
        raise DatasetError("filter", f"No rollout can be trained. {describe_left_out(left_out)}".strip())
    return save(name=name, kind=Dataset.Kind.ROLLOUTS, items=items, query=query, made_by=made_by, left_out=left_out)


def make_pair_dataset(
    *, name: str, pairs: Sequence[tuple[UUID, UUID]], query: dict[str, Any], made_by: str = ""
) -> MadeDataset:
    """pairs: (chosen, rejected). Raises DatasetError."""
    good, left_out = trainable([pk for pair in pairs for pk in pair])
    items = [[str(chosen), str(rejected)] for chosen, rejected in pairs if chosen in good and rejected in good]
    if not items:
        why = describe_left_out(left_out) or "Judge some first: open two rollouts of a group in Compare."
        raise DatasetError("filter", f"No judged pair can be trained. {why}")
    return save(name=name, kind=Dataset.Kind.PAIRS, items=items, query=query, made_by=made_by, left_out=left_out)


def describe_left_out(left_out: dict[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in left_out.items())


def save(
    *, name: str, kind: str, items: list[Any], query: dict[str, Any], made_by: str, left_out: dict[str, int]
) -> MadeDataset:
    name = name.strip()
    if not name or len(name) > 120:
        raise DatasetError("name", "Give it a name of at most 120 characters.")
    if len(items) > MOST_ITEMS:
        raise DatasetError("filter", f"{len(items)} items are too many; narrow the filter to at most {MOST_ITEMS}.")
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(
                name=name, kind=kind, items=items, num_items=len(items), digest=digest, query=query, made_by=made_by
            )
    except IntegrityError as error:
        raise DatasetError("name", f"There is already a data set called {name!r}. Choose another name.") from error
    return MadeDataset(dataset=dataset, left_out=left_out)


def find_dataset(name: str, kind: str) -> Dataset | None:
    return Dataset.objects.filter(name=name, kind=kind).first()
