"""Advantages, by hand-worked numbers."""

import math
import random
import statistics

import pytest

from training.advantages import ADVANTAGES, batch_advantages, overlong_penalty


def test_grpo_divides_the_distance_from_the_mean_by_the_deviation():
    # mean 0.5, deviation with G - 1: sqrt(4 * 0.25 / 3)
    expected = 0.5 / math.sqrt(1 / 3)
    assert batch_advantages("grpo", [[1, 0, 1, 0]])[0] == pytest.approx([expected, -expected, expected, -expected])


def test_dr_grpo_does_not_divide():
    assert batch_advantages("dr_grpo", [[1, 0, 0, 0]])[0] == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_rloo_compares_with_the_others_only():
    assert batch_advantages("rloo", [[1, 0, 0]])[0] == pytest.approx([1.0, -0.5, -0.5])


def test_maxrl_divides_by_the_mean_so_that_a_rare_success_weighs_most():
    assert batch_advantages("maxrl", [[1, 0, 0, 0]])[0] == pytest.approx([3.0, -1.0, -1.0, -1.0])
    assert batch_advantages("maxrl", [[1, 1, 1, 0]])[0] == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])


def test_reinforce_pp_normalises_over_the_batch():
    # rewards 1 0 | 0 0: mean 0.25, deviation 0.5
    assert batch_advantages("reinforce_pp", [[1, 0], [0, 0]]) == [pytest.approx([1.5, -0.5]), pytest.approx([-0.5] * 2)]


@pytest.mark.parametrize("kind", ADVANTAGES)
@pytest.mark.parametrize("rewards", [[0.1] * 6, [0.0] * 6, [1.0] * 2, [1.0], []])
def test_equal_rewards_give_zeros_whatever_the_kind(kind, rewards):
    assert batch_advantages(kind, [rewards]) == [[0.0] * len(rewards)]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_a_group_sums_to_zero(kind):
    assert sum(batch_advantages(kind, [[0.3, 1.0, 0.0, 0.7, 0.2]])[0]) == pytest.approx(0, abs=1e-12)


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(ValueError, match="use one of grpo"):
        batch_advantages("ppo", [[1, 0]])


def plain_python(kind, groups):
    """The formulas again, from the papers, in float64 without tensors."""
    everyone = [reward for group in groups for reward in group]
    found = []
    for group in groups:
        mean, size = statistics.fmean(group), len(group)
        for reward in group:
            others = (sum(group) - reward) / (size - 1)
            found.append(
                {
                    "grpo": (reward - mean) / statistics.stdev(group),
                    "dr_grpo": reward - mean,
                    "rloo": reward - others,
                    "maxrl": (reward - mean) / mean,
                    "reinforce_pp": (reward - statistics.fmean(everyone)) / statistics.stdev(everyone),
                }[kind]
            )
    return found


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_advantages_equal_a_float64_reference(kind):
    source = random.Random(2)
    groups = [[source.random() for _ in range(size)] for size in (8, 3, 2, 5)]
    found = [value for group in batch_advantages(kind, groups) for value in group]
    assert found == pytest.approx(plain_python(kind, groups), rel=1e-9)


def test_the_soft_penalty_for_length_falls_from_0_to_minus_1_over_the_buffer():
    penalty = {tokens: overlong_penalty(tokens, limit=1000, buffer=200) for tokens in (0, 800, 850, 900, 1000, 1500)}
    assert penalty == {0: 0.0, 800: 0.0, 850: -0.25, 900: -0.5, 1000: -1.0, 1500: -1.0}
