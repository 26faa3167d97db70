"""Pieces of an engine's stream that arrive together are handled as one, and say the same."""

from environments.gateway.engine_client import EngineTokens, merge_tokens


def test_pieces_that_arrive_together_are_one_piece_with_all_tokens_and_the_last_word():
    pieces = [
        EngineTokens(ids=[5], logprobs=[-0.5]),
        EngineTokens(ids=[6, 7], logprobs=[-0.25, -1.0], finish_reason="stop", versions=[(0, 3, "4")]),
        EngineTokens(ids=[], logprobs=[], num_cached=12),
    ]
    merged = merge_tokens(pieces)
    assert (merged.ids, merged.logprobs) == ([5, 6, 7], [-0.5, -0.25, -1.0])
    assert (merged.finish_reason, merged.versions, merged.num_cached) == ("stop", [(0, 3, "4")], 12)


def test_a_piece_alone_is_itself():
    piece = EngineTokens(ids=[1], logprobs=[-1.0])
    assert merge_tokens([piece]) is piece
