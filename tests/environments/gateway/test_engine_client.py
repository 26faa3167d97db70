"""Pieces of an engine's stream that arrive together are handled as one, and say the same; garbage is an engine's failure."""

import pytest

from environments.gateway.engine_client import EngineLost, read_chunks


def chunk(ids, logprobs, finish=None, versions=None):
    content = [{"token_id": i, "logprob": value} for i, value in zip(ids, logprobs, strict=False)]
    choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish, "weight_versions": versions}
    return {"choices": [choice]}


def test_pieces_that_arrive_together_are_one_piece_with_all_tokens_and_the_last_word():
    spans = [{"start": 0, "end": 3, "version": "4"}]
    usage = {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 12}}}
    merged = read_chunks([chunk([5], [-0.5]), chunk([6, 7], [-0.25, -1.0], "stop", spans), usage])
    assert (merged.ids, merged.logprobs) == ([5, 6, 7], [-0.5, -0.25, -1.0])
    assert (merged.finish_reason, merged.versions, merged.num_cached) == ("stop", [(0, 3, "4")], 12)


def test_tokens_without_their_logprobs_are_not_taken():
    with pytest.raises(EngineLost, match="1 logprobs for 2 tokens"):
        read_chunks([chunk([5, 6], [-0.5])])


@pytest.mark.parametrize("ids", [["x"], [-1], [2**32], [None]])
def test_what_is_no_token_id_is_not_taken(ids):
    with pytest.raises((TypeError, OverflowError)):
        read_chunks([chunk(ids, [-0.5])])
