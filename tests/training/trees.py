"""Small trees of node records for tests."""

import numpy as np

from training.selection import NodeRecord


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
