"""pass@k and its intervals: numbers worked by hand, and the estimator against simulation."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.pass_rates import bootstrap_interval, ks_up_to, paired_difference, pass_at_k, rate, wilson_interval


@given(st.integers(1, 9), st.data())
def test_the_estimator_is_the_share_of_draws_of_k_rollouts_with_a_pass(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_the_worked_example_of_the_module():
    counts = {"A": (4, 1), "B": (4, 4)}
    assert rate(counts).value == 0.625
    assert rate(counts, 2).value == 0.75


def test_the_estimator_is_unbiased_where_the_plain_one_is_not():
    source = random.Random(1)
    tries = [sum(source.random() < 0.3 for _ in range(4)) for _ in range(20_000)]
    true = 1 - 0.7**2
    assert sum(pass_at_k(4, c, 2) for c in tries) / len(tries) == pytest.approx(true, abs=0.01)
    plain = sum(1 - (1 - c / 4) ** 2 for c in tries) / len(tries)
    assert plain < true - 0.03


def test_wilsons_interval_is_the_published_one_and_stays_within_0_and_1():
    assert wilson_interval(15, 20) == pytest.approx((0.5313, 0.8881), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_one_rollout_a_task_gives_wilsons_interval_and_several_a_bootstrap_over_tasks():
    assert rate({str(n): (1, n % 2) for n in range(10)}).method == "wilson"
    assert rate({str(n): (4, n % 2 * 4) for n in range(10)}).method == "bootstrap"


def test_more_rollouts_of_the_same_tasks_do_not_make_the_interval_narrower_than_the_tasks_allow():
    few = rate({str(n): (2, 2 * (n % 2)) for n in range(10)})
    many = rate({str(n): (50, 50 * (n % 2)) for n in range(10)})
    assert many.high - many.low == pytest.approx(few.high - few.low)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    source = random.Random(2)
    held = 0
    for _ in range(100):
        values = [source.betavariate(2, 3) for _ in range(40)]
        low, high = bootstrap_interval(values)
        held += low <= 0.4 <= high
    assert 85 <= held <= 100


def test_a_task_without_enough_scored_rollouts_is_missing_and_not_a_failure():
    found = rate({"A": (2, 2), "B": (1, 0), "C": (0, 0)}, 2)
    assert (found.value, found.tasks, found.missing) == (1.0, 1, 2)
    assert rate({"B": (1, 0)}, 2) is None


def test_a_paired_difference_is_clear_where_two_separate_intervals_overlap():
    a = {str(n): (4, n % 4) for n in range(40)}
    b = {str(n): (4, n % 4 + n % 2) for n in range(40)}
    one, other = rate(a), rate(b)
    assert one.high > other.low
    found = paired_difference(a, b)
    assert found.value == 0.125
    assert found.is_clear
    assert (found.better, found.worse, found.tasks) == (20, 0, 40)


def test_only_tasks_that_both_have_are_compared():
    assert paired_difference({"A": (1, 1), "B": (1, 0)}, {"B": (1, 0), "C": (1, 1)}) is None


def test_which_ks_are_reported():
    assert [ks_up_to(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
