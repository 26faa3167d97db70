"""Share a rollout's advantage out among its turns: one number a trained token.

From:  a sample, its rollout's advantage, what a person marked on single turns (Member.turn_marks).
To:    training.trainer, as the advantages of the sample's trained tokens; Member.token_stats, for the token view.
Holds: with the defaults (discount 1, weight 0) every token has the rollout's advantage.
Never: reads rows; compares rollouts (training.advantages does).

A(turn k of K) = discount^(K - k) * A + weight * mark_k,  mark_k: 1 right, -1 wrong, 0 nothing said

The reward comes after the last turn, so that the discount is that of a return (Sutton and Barto, eq. 3.8): turns far from the
end have less of it. K counts the sampled turns of the branch, those of other samples among them.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from training.selection import Sample


def turn_advantages(
    sample: Sample, advantage: float, *, discount: float, marks: Mapping[int, bool], mark_weight: float
) -> npt.NDArray[np.float32]:
    """[num_trained] float32. marks: node index to right or wrong; a node that is not in the sample has no effect."""
    advantage_T = np.zeros(sample.num_tokens, dtype=np.float32)
    turns_after = sum(piece.sampled for piece in sample.pieces)
    for piece in sample.pieces:
        turns_after -= piece.sampled
        own = discount**turns_after * advantage
        if piece.node in marks:
            own += mark_weight if marks[piece.node] else -mark_weight
        advantage_T[piece.start : piece.stop] = own
    return advantage_T[sample.loss_mask]
