"""What training did with each token of a rollout, small enough to store with its member: for the token view.

From:  the samples of a rollout and the trainer's logprobs of their trained tokens.
To:    Member.token_stats; `decode_token_stats` gives it back to the pages.
Holds: arrays run over a node's ids *after* its opener, like Node.behaviour_logprobs.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.selection import Sample


@dataclass(frozen=True, kw_only=True)
class NodeStats:
    """trainer_logprobs: [n] float32, NaN where not trained. loss_mask: [n] bool. advantage: of its trained tokens."""

    trainer_logprobs: npt.NDArray[np.float32]
    loss_mask: npt.NDArray[np.bool_]
    advantage: float


def encode_token_stats(
    samples: Sequence[Sample],
    trainer_logprobs: Sequence[npt.NDArray[np.float32]],
    advantages: Sequence[npt.NDArray[np.float32]],
) -> dict[str, dict[str, Any]]:
    """trainer_logprobs, advantages: one array a sample, over its trained tokens in order; all of a node have one advantage.
    Keys are node indices as text."""
    stats: dict[str, dict[str, Any]] = {}
    for sample, values, credit in zip(samples, trainer_logprobs, advantages, strict=True):
        spread = np.full(sample.num_tokens, np.nan, dtype="<f4")
        spread[sample.loss_mask] = values
        credited = np.zeros(sample.num_tokens, dtype=np.float32)
        credited[sample.loss_mask] = credit
        for piece in sample.pieces:
            part = slice(piece.start + piece.opener_length, piece.stop)
            if sample.loss_mask[part].any():
                stats[str(piece.node)] = {
                    "trainer_logprobs": base64.b64encode(spread[part].tobytes()).decode(),
                    "loss_mask": base64.b64encode(sample.loss_mask[part].astype("u1").tobytes()).decode(),
                    "advantage": float(credited[part][sample.loss_mask[part]][0]),
                }
    return stats


def decode_token_stats(stats: Mapping[str, Any]) -> dict[int, NodeStats]:
    """Member.token_stats by node index; nodes that were not trained are absent."""
    return {
        int(index): NodeStats(
            trainer_logprobs=np.frombuffer(base64.b64decode(entry["trainer_logprobs"]), dtype="<f4"),
            loss_mask=np.frombuffer(base64.b64decode(entry["loss_mask"]), dtype="u1").astype(np.bool_),
            advantage=float(entry["advantage"]),
        )
        for index, entry in stats.items()
    }
