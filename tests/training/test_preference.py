"""DPO: its loss against float64 formulas, its gradient against one backward pass through everything."""

import math
from uuid import UUID

import pytest
import torch

from tests.training.tiny import SETTINGS, make_sample, save_tiny_model
from training.config import Preference
from training.packing import build_micro_batches
from training.preference import Pair, PairLogprobs, pair_losses, preference_step, sample_logprobs
from training.trainer import NotFinite, Trainer

pytestmark = pytest.mark.slow


def logprobs(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    return PairLogprobs(
        chosen_P=tensor[:, 0], rejected_P=tensor[:, 1], reference_chosen_P=tensor[:, 2],
        reference_rejected_P=tensor[:, 3], lengths_chosen_P=tensor[:, 4], lengths_rejected_P=tensor[:, 5],
    )  # fmt: skip


ROWS = [(-10.0, -12.0, -12.0, -11.0, 5.0, 4.0), (-30.0, -8.0, -29.0, -9.5, 11.0, 3.0)]


@pytest.mark.parametrize(("smooth", "beta"), [(0.0, 0.1), (0.1, 0.5)])
def test_dpo_is_its_formula_in_double_precision(smooth, beta):
    losses, margins = pair_losses(logprobs(ROWS), Preference(beta=beta, label_smoothing=smooth))
    for row, loss, margin in zip(ROWS, losses.tolist(), margins.tolist(), strict=True):
        m = (row[0] - row[2]) - (row[1] - row[3])
        right, wrong = 1 / (1 + math.exp(-beta * m)), 1 / (1 + math.exp(beta * m))
        assert loss == pytest.approx(-(1 - smooth) * math.log(right) - smooth * math.log(wrong), rel=1e-12)
        assert margin == pytest.approx(m)


def test_the_worked_example_of_the_module():
    losses, _ = pair_losses(logprobs([(-10.0, -11.0, -12.0, -10.0, 1.0, 1.0)]), Preference(beta=0.1))
    assert losses.item() == pytest.approx(0.554, abs=5e-4)


def test_ipo_averages_over_tokens_and_is_squared():
    losses, _ = pair_losses(logprobs(ROWS[:1]), Preference(loss="ipo", beta=0.25))
    margin = (-10.0 + 12.0) / 5 - (-12.0 + 11.0) / 4
    assert losses.item() == pytest.approx((margin - 2.0) ** 2)


@pytest.fixture
def trainer(tmp_path):
    return Trainer.load(save_tiny_model(tmp_path / "model"), settings=SETTINGS, seed=0)


def make_pairs():
    """Of unlike lengths; one side with two samples; longer together than one micro-batch."""
    sides = [(make_sample(seed, length=10 + 7 * seed, trained=4 + seed),) for seed in range(6)]
    sides[2] = (*sides[2], make_sample(50, length=18, trained=3, rollout=2))
    return [Pair(chosen=sides[place], rejected=sides[place + 1]) for place in (0, 2, 4)]


def references_of(trainer, pairs):
    return {
        side[0].rollout_id: float(sample_logprobs(trainer, side).sum()) - 0.5 * number
        for pair in pairs
        for number, side in enumerate(pair.sides)
    }


def test_the_gradient_is_that_of_one_backward_pass_through_all_pairs_at_once(trainer, monkeypatch):
    settings = Preference(beta=0.3)
    pairs = make_pairs()
    references = references_of(trainer, pairs)
    sides = [side for pair in pairs for side in pair.sides]
    sums = []
    for side in sides:
        total = torch.zeros(())
        for batch in build_micro_batches(side, budget_tokens=1000):
            total = total + trainer.language_model.token_logprobs(batch, temperature=1.0)[0].sum()
        sums.append(total)
    whole = torch.stack(sums)
    known = torch.tensor([references[side[0].rollout_id] for side in sides])
    margin = (whole[0::2] - known[0::2]) - (whole[1::2] - known[1::2])
    (-torch.nn.functional.logsigmoid(settings.beta * margin)).mean().backward()
    wanted = {name: master.grad.clone() for name, master in trainer.masters.masters.items()}
    trainer.masters.drop_gradients()

    found = {}

    def keep(*, denominator, learning_rate, loss):
        found.update({name: master.grad / denominator for name, master in trainer.masters.masters.items()})
        trainer.masters.drop_gradients()
        return 1.0

    monkeypatch.setattr(trainer, "apply", keep)
    preference_step(trainer, pairs, references=references, settings=settings, learning_rate=1e-3)
    for name, gradient in wanted.items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-6), name


def test_steps_make_the_chosen_sides_likelier_than_the_rejected_ones(trainer):
    pairs = make_pairs()
    references = references_of(trainer, pairs) | {}
    references = {pk: value + 0.5 * (pk.int % 2) for pk, value in references.items()}
    before = preference_step(trainer, pairs, references=references, settings=Preference(), learning_rate=1e-2)
    assert before.metrics["loss"] == pytest.approx(math.log(2), abs=1e-3)
    for _ in range(10):
        report = preference_step(trainer, pairs, references=references, settings=Preference(), learning_rate=1e-2)
    assert report.metrics["pair_accuracy"] == 1.0
    assert report.metrics["loss"] < 0.8 * before.metrics["loss"]


def test_a_step_that_is_not_finite_changes_nothing(trainer):
    pairs = make_pairs()
    references = references_of(trainer, pairs)
    references[UUID(int=0)] = math.nan
    before = {name: master.detach().clone() for name, master in trainer.masters.masters.items()}
    with pytest.raises(NotFinite, match="loss is nan"):
        preference_step(trainer, pairs, references=references, settings=Preference(), learning_rate=1e-2)
    assert all(torch.equal(before[name], master) for name, master in trainer.masters.masters.items())
