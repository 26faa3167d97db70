"""The documented generator of rollout trees for `bench train`: a function of its seed and four sizes, nothing else.

To:    gyre_web.bench.train: nodes as the gateway records them, cut into samples by training.selection (J_max 5).

One group: `rollouts` members of one task, all below one prompt of `prompt` tokens (system text, tools, task).
A member's trunk is `turns` turns: an answer of 20 to 60 sampled tokens, then a tool result of 30 to 90. From the last
third of the trunk `forks` branches leave (a retry, a compaction, an edited history): each takes the history up to a
turn drawn uniformly there, and goes on for 1 or 2 turns of its own. So a member has 1 + forks leaves, as many as J_max
takes at the default of 4. All token ids are uniform over the vocabulary; logprobs are -log(vocabulary), which is what a
model of random weights gives, to within the width of its initialisation.
"""

import math
from dataclasses import dataclass
from random import Random
from uuid import UUID

import numpy as np

from training.selection import NodeRecord, select_samples
from training.trainer import TrainRollout


@dataclass(frozen=True, kw_only=True)
class TreeSizes:
    rollouts: int
    prompt: int
    turns: int
    forks: int = 4


def make_group(sizes: TreeSizes, *, vocabulary: int, seed: int) -> list[TrainRollout]:
    """One group; advantages alternate 1 and -1."""
    source = Random(seed)
    prompt = text(source, sizes.prompt, vocabulary)
    return [
        TrainRollout(
            samples=select_samples(
                make_tree(prompt, sizes, source, vocabulary), rollout_id=UUID(int=seed * 1000 + number), max_samples=5
            ).samples,
            advantage=1.0 if number % 2 else -1.0,
        )
        for number in range(sizes.rollouts)
    ]


def make_tree(prompt: np.ndarray, sizes: TreeSizes, source: Random, vocabulary: int) -> list[NodeRecord]:
    nodes = [record(0, None, prompt, sampled=False, vocabulary=vocabulary)]
    ends = [0]  # the node after which turn n begins
    for _ in range(sizes.turns):
        ends.append(add_turn(nodes, ends[-1], source, vocabulary))
    for _ in range(sizes.forks):
        end = ends[source.randrange(sizes.turns * 2 // 3, sizes.turns)]
        for _ in range(source.randint(1, 2)):
            end = add_turn(nodes, end, source, vocabulary)
    return nodes


def add_turn(nodes: list[NodeRecord], parent: int, source: Random, vocabulary: int) -> int:
    """An answer and its tool result. returns the index of the latter."""
    answer = text(source, source.randint(20, 60), vocabulary)
    nodes.append(record(len(nodes), parent, answer, sampled=True, vocabulary=vocabulary))
    result = text(source, source.randint(30, 90), vocabulary)
    nodes.append(record(len(nodes), len(nodes) - 1, result, sampled=False, vocabulary=vocabulary))
    return len(nodes) - 1


def record(index: int, parent: int | None, ids: np.ndarray, *, sampled: bool, vocabulary: int) -> NodeRecord:
    logprobs = np.full(len(ids), -math.log(vocabulary), dtype=np.float32) if sampled else None
    return NodeRecord(
        index=index, parent=parent, branch_role="main", sampled=sampled, trainable=sampled, opener_length=0, ids=ids,
        behaviour_logprobs=logprobs,
    )  # fmt: skip


def text(source: Random, length: int, vocabulary: int) -> np.ndarray:
    return np.array([source.randrange(1, vocabulary) for _ in range(length)], dtype=np.int64)
