"""What the config says about lengths and rates, on stand-ins for rows."""

from types import SimpleNamespace

import pytest

from environments.models import Outcome
from training.config import Objective, RunConfig
from training.config_checks import _check_objective
from training.policy_batch import is_masked, shaped_reward
from training.trainer_process import learning_rate


def member(*, reward=1.0, sampled=0, outcome=Outcome.COMPLETED, judged=None):
    """judged: by a person, who said `reward`."""
    rollout = SimpleNamespace(sampled_tokens=sampled, outcome=outcome)
    return SimpleNamespace(reward=reward, effective_reward=judged, rollout=rollout)


def config(**objective):
    made = RunConfig()
    budgets = made.budgets.model_copy(update={"max_sampled_tokens": 1000})
    return made.model_copy(update={"objective": Objective(**objective), "budgets": budgets})


def test_only_the_soft_penalty_moves_a_reward():
    long = member(reward=0.5, sampled=900)
    assert shaped_reward(long, config()) == 0.5
    assert shaped_reward(long, config(overlong="mask")) == 0.5
    assert shaped_reward(long, config(overlong="soft", overlong_buffer_tokens=200)) == pytest.approx(0.0)


def test_zero_takes_the_reward_of_work_that_was_not_handed_in_but_not_a_persons():
    cut, zero = Outcome.BUDGET_REACHED, config(overlong="zero")
    assert shaped_reward(member(outcome=cut), config()) == 1.0
    assert shaped_reward(member(outcome=cut), zero) == 0.0
    assert shaped_reward(member(), zero) == 1.0
    assert shaped_reward(member(reward=0.7, judged=0.7, outcome=cut), zero) == 0.7


@pytest.mark.parametrize(
    ("outcome", "masked"),
    [
        (Outcome.COMPLETED, False),
        (Outcome.HARNESS_CRASH, False),
        (Outcome.BUDGET_REACHED, True),
        (Outcome.CONTEXT_OVERFLOW, True),
        (Outcome.HARNESS_TIMEOUT, True),
    ],
)
def test_mask_takes_rollouts_that_a_limit_ended(outcome, masked):
    assert is_masked(member(outcome=outcome), config(overlong="mask")) is masked
    assert not is_masked(member(outcome=outcome), config())


def rates(**changes):
    made = RunConfig()
    settings = made.optimization.model_copy(update={"learning_rate": 1.0, "steps": 10, **changes})
    return [learning_rate(made.model_copy(update={"optimization": settings}), step) for step in range(1, 11)]


def test_the_rate_is_constant_unless_told_otherwise():
    assert rates() == pytest.approx([1.0] * 10)


def test_the_rate_rises_over_the_warm_up_and_falls_to_a_tenth():
    assert rates(warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, *[1.0] * 6])
    assert rates(warmup_steps=5, decay="linear")[4:] == pytest.approx([1.0, 0.82, 0.64, 0.46, 0.28, 0.1])
    assert rates(decay="cosine")[4] == pytest.approx(0.55)
    assert rates(decay="cosine")[9] == pytest.approx(0.1)


def wrong_fields(**objective):
    return {error.field for error in _check_objective(config(**objective))}


def test_a_penalty_longer_than_a_rollout_and_a_kl_without_gradient_are_refused():
    assert wrong_fields() == set()
    assert wrong_fields(overlong="soft", overlong_buffer_tokens=1001) == {"objective.overlong_buffer_tokens"}
    assert wrong_fields(kl_coefficient=0.1, kl_estimator="k1") == {"objective.kl_estimator"}
    assert wrong_fields(kl_coefficient=0.1, kl_estimator="k1", kl_in="reward") == set()
