"""bench train: its generator is a function of its seed, and `ok` can be recomputed from the figures."""

import numpy as np
import pytest

from gyre_web.bench._trees import TreeSizes, make_group
from gyre_web.bench.train import FULL, QUICK, count_tokens, fit_line, judge, median_ratio, ratios

FIGURES = {
    "flat_tokens": 600, "distinct_tokens": 100, "computed_tokens": 100, "speedup": 4.5, "trl_ratio": 1.5,
    "memory_slope_r2": 0.999,
}  # fmt: skip


def test_the_same_seed_gives_the_same_trees_and_another_gives_others():
    sizes = TreeSizes(rollouts=2, prompt=50, turns=6)
    one, same, other = (make_group(sizes, vocabulary=100, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(one, same, strict=True):
        for left, right in zip(a.samples, b.samples, strict=True):
            assert np.array_equal(left.ids, right.ids)
            assert np.array_equal(left.loss_mask, right.loss_mask)
    assert not np.array_equal(one[0].samples[0].ids, other[0].samples[0].ids)


@pytest.mark.parametrize("plan", [QUICK, FULL], ids=["quick", "full"])
def test_the_trees_of_both_plans_hold_each_token_five_times_or_more(plan):
    counts = count_tokens(make_group(plan.trees, vocabulary=plan.vocabulary, seed=1))
    assert counts["samples"] == 5 * plan.trees.rollouts
    assert 5 < counts["flat_tokens"] / counts["distinct_tokens"] < 8
    assert counts["distinct_tokens"] < 16384  # one micro-batch holds the group


def test_ok_needs_every_target():
    assert judge(FIGURES)["ok"]
    for name, bad in {
        "computed_tokens": 101,
        "speedup": 4.1,  # 0.7 of 6 is 4.2
        "trl_ratio": 1.29,
        "memory_slope_r2": 0.98,
    }.items():
        assert not judge(FIGURES | {name: bad})["ok"], name
    assert not judge(FIGURES | {"trl_ratio": "skipped: no network"})["ok"]


def test_ratios_are_medians_of_rounds_in_each_sides_fastest_precision():
    rounds = {
        "fp32": {"tree": [1.0, 1.0, 2.0], "flat": [4.0, 5.0, 8.0], "trl": [6.0, 6.0, 6.0]},
        "bf16": {"tree": [3.0, 3.0, 3.0], "flat": [9.0, 9.0, 9.0], "trl": [5.0, 5.5, 5.0]},
    }
    found = ratios(rounds)
    assert found["speedup"] == 4.0
    assert found["trl_ratio"] == pytest.approx(1.1)
    assert median_ratio([2, 9, 4], [1, 3, 1]) == 3


def test_a_straight_line_has_r_squared_1_and_a_square_has_less():
    assert fit_line([1, 2, 4], [12, 14, 18]) == pytest.approx((2, 10, 1))
    x = [1, 2, 4, 8, 16, 32, 64]
    assert fit_line(x, [v * v for v in x])[2] < 0.95
