"""Small trees of node records for tests."""

from dataclasses import replace
from random import Random
from uuid import UUID

import numpy as np

from training.selection import NodeRecord, select_samples
from training.trainer import TrainRollout


def node(index, parent, ids, *, sampled=False, role="main", opener=0, logprobs=True, trainable=None):
    """A record; sampled nodes get logprobs -0.1, -0.2, ... after their opener."""
    size = len(ids) - opener
    values = np.array([-0.1 * (place + 1) for place in range(size)], dtype=np.float32)
    return NodeRecord(
        index=index,
        parent=parent,
        branch_role=role,
        sampled=sampled,
        trainable=sampled if trainable is None else trainable,
        opener_length=opener,
        ids=np.array(ids, dtype=np.int64),
        behaviour_logprobs=values if sampled and logprobs else None,
    )


def two_turns():
    """system+user (3 ids), an answer with a two-id opener, a tool result, a second answer."""
    return [
        node(0, None, [1, 2, 3]),
        node(1, 0, [50, 51, 10, 11], sampled=True, opener=2),
        node(2, 1, [4, 5]),
        node(3, 2, [50, 51, 12, 13, 14], sampled=True, opener=2),
    ]


def random_rollouts(seed, *, vocabulary, rollouts=3):
    """One group below one prompt; each member a trunk of turns with forks, cut into samples as training does."""
    source = Random(seed)

    def text(low, high):
        return [source.randrange(1, vocabulary) for _ in range(source.randint(low, high))]

    prompt = text(15, 25)
    return [
        TrainRollout(
            samples=select_samples(
                random_tree(source, prompt, text), rollout_id=UUID(int=100 * seed + number), max_samples=5
            ).samples,
            advantage=source.choice((1.0, -1.0, 0.5)),
        )
        for number in range(rollouts)
    ]


def random_tree(source, prompt, text):
    """Four turns, then forks from random turns."""
    nodes = [node(0, None, prompt)]
    for _ in range(4):
        add_turn(nodes, len(nodes) - 1, text)
    for _ in range(source.randint(1, 4)):
        add_turn(nodes, source.choice([n.index for n in nodes if not n.sampled]), text)
    return nodes


def add_turn(nodes, parent, text):
    answer = node(len(nodes), parent, [1, 2, *text(3, 9)], sampled=True, opener=2)
    size = len(answer.behaviour_logprobs)
    nodes.append(replace(answer, behaviour_logprobs=np.linspace(-5, -3, size, dtype=np.float32)))
    nodes.append(node(len(nodes), len(nodes) - 1, text(3, 12)))
