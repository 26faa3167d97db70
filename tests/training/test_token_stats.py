"""Token stats: what is stored with a member comes back per node, aligned after the opener."""

from uuid import UUID

import numpy as np

from tests.training.trees import two_turns
from training.selection import select_samples
from training.token_stats import decode_token_stats, encode_token_stats


def test_stats_come_back_by_node_aligned_with_behaviour_logprobs():
    nodes = two_turns()
    samples = select_samples(nodes, rollout_id=UUID(int=1), max_samples=5).samples
    trainer_logprobs = [np.array([-1, -2, -3, -4, -5], dtype=np.float32)]
    advantages = [np.array([2, 2, 3, 3, 3], dtype=np.float32)]
    stats = decode_token_stats(encode_token_stats(samples, trainer_logprobs, advantages))
    assert set(stats) == {1, 3}
    assert stats[1].trainer_logprobs.tolist() == [-1, -2]
    assert stats[3].trainer_logprobs.tolist() == [-3, -4, -5]
    assert len(stats[3].loss_mask) == len(nodes[3].behaviour_logprobs)
    assert stats[3].loss_mask.all()
    assert (stats[1].advantage, stats[3].advantage) == (2.0, 3.0)
