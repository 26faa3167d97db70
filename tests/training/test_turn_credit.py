"""What a turn gets of its rollout's advantage, and that the trainer trains with it."""

from uuid import UUID

import numpy as np
import pytest

from tests.training.attempts import make_attempt, request_step
from tests.training.test_trainer_process import last_weights, same, warm
from tests.training.tiny import SETTINGS, VOCABULARY, save_tiny_model
from tests.training.trees import node, random_rollouts, two_turns
from training.config import RunConfig
from training.models import Member
from training.policy_batch import build_rollout
from training.selection import select_samples
from training.token_stats import decode_token_stats
from training.trainer import PolicyTerms, Trainer, TrainRollout
from training.turn_credit import turn_advantages

PLAIN = {"discount": 1.0, "marks": {}, "mark_weight": 0.0}


def samples_of(nodes):
    return select_samples(nodes, rollout_id=UUID(int=1), max_samples=5).samples


def test_with_the_defaults_every_token_has_the_rollouts_advantage():
    (sample,) = samples_of(two_turns())
    assert turn_advantages(sample, 1.5, **PLAIN).tolist() == [1.5] * 5


def test_turns_far_from_the_end_have_less_and_context_is_no_turn():
    (sample,) = samples_of(two_turns())
    found = turn_advantages(sample, -2.0, **PLAIN | {"discount": 0.5})
    assert found.tolist() == [-1.0, -1.0, -2.0, -2.0, -2.0]


def test_a_turn_that_another_sample_trains_counts_as_a_turn_after():
    """Node 1 is trained by one branch only; in both it is a turn."""
    nodes = [*two_turns(), node(4, 1, [6]), node(5, 4, [50, 51, 15], sampled=True, opener=2)]
    nodes += [node(6, 5, [7]), node(7, 6, [50, 51, 16], sampled=True, opener=2)]
    values = {}
    for sample in samples_of(nodes):
        found = iter(turn_advantages(sample, 1.0, **PLAIN | {"discount": 0.5}))
        for place in np.flatnonzero(sample.loss_mask):
            values[int(sample.ids[place])] = next(found)
    assert (values[12], values[16], values[15]) == (1.0, 1.0, 0.5)
    assert values[10] in (0.5, 0.25)  # one turn after it in the short branch, two in the long one


def test_marks_move_their_own_turn_only_and_may_turn_its_sign():
    (sample,) = samples_of(two_turns())
    found = turn_advantages(sample, 0.5, discount=1.0, marks={1: False, 3: True, 99: True}, mark_weight=0.75)
    assert found.tolist() == [-0.25, -0.25, 1.25, 1.25, 1.25]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def gradient_of(model_path, rollouts, **settings):
    trainer = Trainer.load(model_path, settings=SETTINGS.model_copy(update={"max_grad_norm": 1e9, **settings}), seed=0)
    terms = PolicyTerms(objective=RunConfig().objective, temperature=1.0, constant_length=100)
    report = trainer.policy_step(rollouts, terms=terms, learning_rate=0.0)
    return report.metrics["grad_norm"]


@pytest.mark.parametrize("packing", ["tree", "flat"])
def test_the_trainer_weighs_each_turn_by_its_own_advantage(model_path, packing):
    """All turns given the rollout's advantage: the same step. Twice of it in every turn: twice the gradient.
    Nothing in any turn: nothing is computed."""
    rollouts = random_rollouts(3, vocabulary=VOCABULARY)

    def scaled(factor):
        return [
            TrainRollout(
                samples=each.samples,
                advantage=each.advantage,
                turn_advantages=tuple(factor * values for values in each.advantages),
            )
            for each in rollouts
        ]

    whole = gradient_of(model_path, rollouts, packing=packing)
    assert gradient_of(model_path, scaled(1.0), packing=packing) == whole
    assert gradient_of(model_path, scaled(2.0), packing=packing) == pytest.approx(2 * whole, rel=1e-4)
    assert gradient_of(model_path, scaled(0.0), packing=packing) == 0.0


def test_a_turn_without_credit_is_as_if_it_were_not_trained(model_path):
    """Aside from the denominator, which counts it: two tokens of five have no credit, so three fifths of the gradient."""
    (sample,) = samples_of(two_turns())
    credit = np.array([0, 0, 1, 1, 1], dtype=np.float32)
    only_last = type(sample)(**{**sample.__dict__, "loss_mask": sample.loss_mask & (np.arange(sample.num_tokens) > 8)})
    found = gradient_of(model_path, [TrainRollout(samples=(sample,), advantage=1.0, turn_advantages=(credit,))])
    assert only_last.num_trained == 3
    alone = gradient_of(model_path, [TrainRollout(samples=(only_last,), advantage=1.0)])
    assert found == pytest.approx(3 / 5 * alone, rel=1e-4)


@pytest.mark.django_db
@pytest.mark.slow
def test_a_persons_marks_train_in_a_run_that_weighs_them_and_are_shown(tmp_path, settings):
    settings.DATA_DIR = tmp_path / "data"
    attempt = make_attempt(tmp_path, objective={"turn_mark_weight": 0.5, "turn_discount": 0.5})
    loop = warm(attempt)
    before = last_weights(attempt)
    request_step(attempt, 1, rewards=((1, 1, 1), (1, 1, 1)))
    marked = Member.objects.order_by("group__index", "slot")[0]
    Member.objects.filter(pk=marked.pk).update(turn_marks={"1": True, "3": False})
    assert loop.turn()
    marked.refresh_from_db()
    stats = decode_token_stats(marked.token_stats)
    assert (marked.advantage, marked.reason) == (0.0, "")
    assert {index: each.advantage for index, each in stats.items()} == {1: 0.5, 3: -0.5}
    assert not same(before, last_weights(attempt))
    other = Member.objects.exclude(pk=marked.pk)[0]
    assert other.reason.startswith("no signal")


def test_a_run_that_does_not_weigh_marks_ignores_them():
    (sample,) = samples_of(two_turns())
    member = Member(turn_marks={"1": True})
    assert build_rollout(member, (sample,), 1.0, RunConfig()).turn_advantages is None
