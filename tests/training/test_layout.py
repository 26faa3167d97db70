"""Layout: every distinct prefix once, and a token's ancestors are exactly the tokens before it in its samples."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from training.layout import Look, Run, clip, distinct_tokens, lay_out

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9)


def arrays(sequences):
    return [np.array(ids, dtype=np.int64) for ids in sequences]


def seen_by(runs, looks, size):
    """[T, T] bool: which rows each row attends to, and how often."""
    seen = np.zeros((size, size), dtype=np.int64)
    for run in runs:
        for row in range(run.start, run.stop):
            seen[row, run.start : row + 1] += 1
    for look in looks:
        seen[look.start : look.stop, look.first : look.last] += 1
    return seen


def test_the_worked_example_of_the_module():
    layout = lay_out(arrays([[1, 2, 3, 4], [1, 2, 7, 8]]), share=True)
    assert layout.ids_T.tolist() == [1, 2, 3, 4, 7, 8]
    assert layout.positions_T.tolist() == [0, 1, 2, 3, 2, 3]
    assert layout.runs == (Run(start=0, stop=4), Run(start=4, stop=6))
    assert layout.looks == (Look(start=4, stop=6, first=0, last=2),)
    assert layout.ends_T.tolist() == [6, 6, 4, 4, 6, 6]
    assert layout.places[1].tolist() == [0, 1, 4, 5]


def test_a_sample_that_continues_another_extends_its_run():
    layout = lay_out(arrays([[1, 2, 3, 4, 5], [1, 2, 3]]), share=True)
    assert layout.runs == (Run(start=0, stop=5),)
    assert layout.looks == ()


def test_branches_of_one_token_look_up_together():
    layout = lay_out(arrays([[1, 2, 3], [1, 2, 4], [1, 2, 5]]), share=True)
    assert layout.looks == (Look(start=3, stop=5, first=0, last=2),)


@given(SEQUENCES)
@settings(max_examples=200, deadline=None)
def test_any_samples_keep_their_tokens_positions_and_ancestors(sequences):
    sequences = arrays(sequences)
    layout = lay_out(sequences, share=True)
    seen = seen_by(layout.runs, layout.looks, layout.num_tokens)
    assert seen.max() <= 1  # no kernel counts a key twice
    assert layout.num_tokens == len({tuple(ids[: n + 1]) for ids in sequences for n in range(len(ids))})
    assert layout.num_tokens == distinct_tokens(sequences)
    for ids, place in zip(sequences, layout.places, strict=True):
        assert (layout.ids_T[place] == ids).all()
        assert (layout.positions_T[place] == np.arange(len(ids))).all()
        for token in range(len(ids)):
            assert np.flatnonzero(seen[place[token]]).tolist() == sorted(place[: token + 1].tolist())


@given(SEQUENCES)
@settings(max_examples=100, deadline=None)
def test_the_block_masks_relation_is_the_same(sequences):
    layout = lay_out(arrays(sequences), share=True)
    rows = np.arange(layout.num_tokens)
    mask = (rows[None] <= rows[:, None]) & (rows[:, None] < layout.ends_T[None])
    assert (mask == seen_by(layout.runs, layout.looks, layout.num_tokens).astype(bool)).all()


@given(SEQUENCES, st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_rows_divided_among_ranks_see_what_they_saw_together(sequences, world):
    layout = lay_out(arrays(sequences), share=True)
    whole = seen_by(layout.runs, layout.looks, layout.num_tokens)
    size = -(-layout.num_tokens // world)
    parts = [clip(layout, rank * size, (rank + 1) * size) for rank in range(world)]
    assert (sum(seen_by(runs, looks, layout.num_tokens) for runs, looks in parts) == whole).all()


def test_flat_samples_share_nothing():
    layout = lay_out(arrays([[1, 2], [1, 2, 3]]), share=False)
    assert layout.ids_T.tolist() == [1, 2, 1, 2, 3]
    assert layout.runs == (Run(start=0, stop=2), Run(start=2, stop=5))
    assert layout.looks == ()
