"""Choose which branches of a rollout's tree are trained, and which of their tokens.

From:  a finished rollout's nodes (training.trainer_process reads the rows), or any records in tests.
To:    a Selection: samples that training.packing turns into micro-batches.
Holds: a sampled token is trained at most once; the same tree gives the same samples; a template's generation
       prompt (`opener_length` ids), edited, aborted and side text is context.
Never: computes rewards or advantages, touches the database.
Cost:  linear in nodes for each sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt

ROLE_ORDER = ("main", "main-summary", "sub-agent", "sub-summary")
"""Classes that may be trained, most wanted first. `side` is in none of them."""

TRAINED_ROLES = {"main": ROLE_ORDER[:1], "with-summaries": ROLE_ORDER[:2], "all": ROLE_ORDER}
"""The config's choices (objective.trained_roles)."""

Purpose = Literal["policy", "supervised"]
"""A policy loss needs behaviour logprobs; a supervised loss does not."""


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """What selection needs of a Node row.

    ids: [n] int64, opener included. behaviour_logprobs: [n - opener_length] float32, None where nobody sampled
    (a scripted expert's demonstration). oldest_version: of its sampled tokens, None where unknown.
    """

    index: int
    parent: int | None
    branch_role: str
    sampled: bool
    trainable: bool
    opener_length: int
    ids: npt.NDArray[np.int64]
    behaviour_logprobs: npt.NDArray[np.float32] | None
    oldest_version: int | None = None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One node's place in a sample: ids[start:stop] are the node's ids. sampled: it is a turn of the model's."""

    node: int
    start: int
    stop: int
    opener_length: int
    sampled: bool = True


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A branch with its loss mask, all arrays over its T tokens.

    behaviour_logprobs is NaN where the engine gave none; loss_mask is never set there for a policy loss.
    """

    rollout_id: UUID
    pieces: tuple[Piece, ...]
    ids: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]
    behaviour_logprobs: npt.NDArray[np.float32]

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask.sum())


@dataclass(frozen=True, kw_only=True)
class Selection:
    """num_left: trainable tokens that no sample took (beyond max_samples).
    num_without_logprobs: sampled and whole, but left out of a policy loss because the engine gave no logprob."""

    samples: tuple[Sample, ...]
    num_left: int
    num_without_logprobs: int


def build_record(node: Any) -> NodeRecord:
    """A Node row (environments.models.Node) as a record: little-endian uint32 ids, float32 logprobs."""
    ids = np.frombuffer(bytes(node.ids), dtype="<u4").astype(np.int64)
    logprobs = node.behaviour_logprobs
    return NodeRecord(
        index=node.index,
        parent=node.parent,
        branch_role=node.branch_role,
        sampled=node.sampled,
        trainable=node.trainable,
        opener_length=node.opener_length,
        ids=ids,
        behaviour_logprobs=None if logprobs is None else np.frombuffer(bytes(logprobs), dtype="<f4"),
        oldest_version=min((span[2] for span in node.version_spans), default=None) if node.sampled else None,
    )


def select_samples(
    nodes: Sequence[NodeRecord],
    *,
    rollout_id: UUID,
    max_samples: int,
    purpose: Purpose = "policy",
    roles: Sequence[str] = ROLE_ORDER,
) -> Selection:
    """Take branches until nothing is left or max_samples (0: no limit) are taken, highest role class first.

    roles: whose tokens may be trained; those of others are context, and not counted as left.

    Within a class a leaf is drawn with probability proportional to the untrained tokens of its branch; the random
    state is the rollout's id.
    """
    by_index = {node.index: node for node in nodes}
    wanted = {node.index: num_trainable(node, purpose) if node.branch_role in roles else 0 for node in nodes}
    untrained = {index: count for index, count in wanted.items() if count}
    whole = sum(num_trainable(node, "supervised") for node in nodes if node.branch_role in roles)
    missing = whole - sum(wanted.values())
    random = Random(rollout_id.int)
    samples: list[Sample] = []
    while untrained and (len(samples) < max_samples or not max_samples):
        leaves = class_leaves(by_index, untrained)
        paths = [branch_of(by_index, leaf) for leaf in leaves]
        weights = [sum(untrained.get(index, 0) for index in path) for path in paths]
        path = random.choices(paths, weights=weights)[0]
        taken = {index for index in path if index in untrained}
        samples.append(build_sample(rollout_id, [by_index[index] for index in path], taken))
        for index in taken:
            del untrained[index]
    return Selection(samples=tuple(samples), num_left=sum(untrained.values()), num_without_logprobs=missing)


def num_trainable(node: NodeRecord, purpose: Purpose) -> int:
    """Tokens of the node that this kind of loss may train."""
    if not (node.sampled and node.trainable) or node.branch_role not in ROLE_ORDER:
        return 0
    if purpose == "policy" and node.behaviour_logprobs is None:
        return 0
    return len(node.ids) - node.opener_length


def class_leaves(by_index: dict[int, NodeRecord], untrained: dict[int, int]) -> list[int]:
    """Ends of the branches of the highest class with untrained tokens: its nodes that have no such node below them."""
    best = min(ROLE_ORDER.index(by_index[index].branch_role) for index in untrained)
    members = {index for index in untrained if by_index[index].branch_role == ROLE_ORDER[best]}
    inner: set[int] = set()
    for index in members:
        above = by_index[index].parent
        while above is not None and above not in inner:
            inner.add(above)
            above = by_index[above].parent
    return sorted(members - inner)


def branch_of(by_index: dict[int, NodeRecord], leaf: int) -> list[int]:
    """Node indices from the root to the leaf."""
    path = [leaf]
    while (parent := by_index[path[-1]].parent) is not None:
        path.append(parent)
    return path[::-1]


def build_sample(rollout_id: UUID, path: Sequence[NodeRecord], taken: set[int]) -> Sample:
    """Concatenate a branch; only the nodes in `taken` are trained, after their openers."""
    total = sum(len(node.ids) for node in path)
    loss_mask = np.zeros(total, dtype=np.bool_)
    logprobs = np.full(total, np.nan, dtype=np.float32)
    pieces = []
    start = 0
    for node in path:
        stop, first = start + len(node.ids), start + node.opener_length
        if node.index in taken:
            loss_mask[first:stop] = True
        if node.behaviour_logprobs is not None:
            logprobs[first:stop] = node.behaviour_logprobs
        pieces.append(
            Piece(node=node.index, start=start, stop=stop, opener_length=node.opener_length, sampled=node.sampled)
        )
        start = stop
    loss_mask[:1] = False  # nothing predicts the first token
    return Sample(
        rollout_id=rollout_id,
        pieces=tuple(pieces),
        ids=np.concatenate([node.ids for node in path]),
        loss_mask=loss_mask,
        behaviour_logprobs=logprobs,
    )
