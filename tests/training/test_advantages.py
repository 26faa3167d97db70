"""Advantages, by hand-worked numbers."""

import math

import pytest

from training.advantages import ADVANTAGES, batch_advantages


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
