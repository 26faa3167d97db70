"""The trainer on a tiny random model: equal ways of computing are equal, and a resumed one is the uninterrupted one."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.training.tiny import SETTINGS, make_rollouts, make_sample, save_tiny_model
from training.checkpoints import StorageFull, load_checkpoint, save_checkpoint
from training.config import Objective
from training.packing import build_micro_batches
from training.trainer import PolicyTerms, Trainer, TrainerError, TrainRollout

pytestmark = pytest.mark.slow

TERMS = PolicyTerms(objective=Objective(), temperature=1.0, constant_length=50)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def load(path, **changes):
    return Trainer.load(path, settings=SETTINGS.model_copy(update=changes), seed=1)


def weights(trainer):
    return torch.cat([master.detach().flatten() for master in trainer.masters])


def test_logprobs_in_a_packed_row_equal_those_of_the_model_on_each_sample_alone(model_path):
    trainer = load(model_path)
    samples = [make_sample(seed, length=length) for seed, length in enumerate([12, 30, 18])]
    plain = AutoModelForCausalLM.from_pretrained(model_path)
    report = trainer.policy_step(
        [TrainRollout(samples=(sample,), advantage=1.0) for sample in samples], terms=TERMS, learning_rate=0.0
    )
    for sample, found in zip(samples, report.trainer_logprobs, strict=True):
        with torch.no_grad():
            logits = plain(torch.from_numpy(sample.ids)[None]).logits[0].float()
        expected = torch.log_softmax(logits[:-1], -1).gather(1, torch.from_numpy(sample.ids)[1:, None])[:, 0]
        assert np.allclose(found, expected[torch.from_numpy(sample.loss_mask[1:])].numpy(), atol=1e-5)


def test_padded_rows_give_the_same_logprobs_as_segments(model_path):
    trainer = load(model_path)
    (batch,) = build_micro_batches([make_sample(0, length=13), make_sample(1, length=30)], budget_tokens=64)
    segments, _ = trainer.language_model.token_logprobs(batch, temperature=1.0)
    trainer.language_model.passes.segments = False
    trainer.language_model.module.set_attn_implementation("sdpa")
    padded, _ = trainer.language_model.token_logprobs(batch, temperature=1.0)
    assert torch.allclose(segments, padded, atol=1e-5)


@pytest.mark.parametrize("kind", ["two-level", "token-mean", "sequence-mean", "constant-length"])
def test_one_large_micro_batch_moves_the_weights_like_many_small_ones(model_path, kind):
    terms = PolicyTerms(objective=Objective(aggregation=kind), temperature=0.8, constant_length=50)
    moved = []
    for budget in (16, 1024):
        trainer = load(model_path, micro_batch_tokens=budget)
        trainer.optimizer = torch.optim.SGD(list(trainer.masters), lr=1.0)
        trainer.policy_step(make_rollouts(), terms=terms, learning_rate=1.0)
        moved.append(weights(trainer))
    assert torch.allclose(moved[0], moved[1], atol=1e-6)


def test_leaving_out_rollouts_without_signal_changes_nothing(model_path):
    """An entropy coefficient of 1e-12 makes the trainer compute all rollouts."""
    moved = []
    for objective in (Objective(), Objective(entropy_coefficient=1e-12)):
        trainer = load(model_path)
        trainer.optimizer = torch.optim.SGD(list(trainer.masters), lr=1.0)
        terms = PolicyTerms(objective=objective, temperature=1.0, constant_length=50)
        report = trainer.policy_step(make_rollouts(), terms=terms, learning_rate=1.0)
        moved.append((weights(trainer), np.isnan(report.trainer_logprobs[5]).all()))
    assert torch.allclose(moved[0][0], moved[1][0], atol=1e-6)
    assert moved[0][1]
    assert not moved[1][1]


def test_a_policy_step_makes_good_tokens_likelier_and_bad_ones_less_likely(model_path):
    trainer = load(model_path)
    good, bad = make_sample(1), make_sample(2)
    rollouts = [TrainRollout(samples=(good,), advantage=1.0), TrainRollout(samples=(bad,), advantage=-1.0)]
    before = trainer.policy_step(rollouts, terms=TERMS, learning_rate=1e-3).trainer_logprobs
    after = trainer.policy_step(rollouts, terms=TERMS, learning_rate=0.0).trainer_logprobs
    assert after[0].mean() > before[0].mean()
    assert after[1].mean() < before[1].mean()


def test_supervised_steps_learn_a_demonstration(model_path):
    trainer = load(model_path)
    losses = [trainer.supervised_step([make_sample(1)], learning_rate=1e-2).metrics["loss"] for _ in range(30)]
    assert losses[0] > 3.5
    assert losses[-1] < 1.0


def test_bf16_passes_follow_fp32_within_its_rounding(model_path):
    """Ten supervised steps: the float32 masters keep what bf16 weights would round away."""
    found = []
    for precision in ("fp32", "bf16"):
        trainer = load(model_path, precision=precision)
        found.append([trainer.supervised_step([make_sample(1)], learning_rate=3e-3).metrics["loss"] for _ in range(10)])
        assert all(master.dtype == torch.float32 for master in trainer.masters)
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_trainer_equals_the_uninterrupted_one(model_path, tmp_path, precision):
    straight = load(model_path, precision=precision)
    for _ in range(2):
        straight.policy_step(make_rollouts(), terms=TERMS, learning_rate=1e-3)
    save_checkpoint(straight, tmp_path / "step-000002", counters={"step": 2})
    straight.policy_step(make_rollouts(), terms=TERMS, learning_rate=1e-3)

    resumed = load(model_path, precision=precision)
    assert load_checkpoint(resumed, tmp_path / "step-000002") == {"step": 2}
    resumed.policy_step(make_rollouts(), terms=TERMS, learning_rate=1e-3)
    assert torch.equal(weights(straight), weights(resumed))


def test_a_half_written_checkpoint_never_has_the_final_name(model_path, tmp_path, monkeypatch):
    trainer = load(model_path)

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("training.checkpoints.torch.save", full_disk)
    with pytest.raises(StorageFull):
        save_checkpoint(trainer, tmp_path / "step-000001", counters={})
    assert list(tmp_path.iterdir()) == []


def test_a_gradient_that_is_not_finite_changes_nothing(model_path):
    trainer = load(model_path)
    before = weights(trainer).clone()
    with pytest.raises(TrainerError, match="nothing was changed"):
        trainer.policy_step(
            [TrainRollout(samples=(make_sample(1),), advantage=math.inf)], terms=TERMS, learning_rate=1e-3
        )
    assert torch.equal(before, weights(trainer))


def test_a_stop_between_micro_batches_changes_nothing(model_path):
    trainer = load(model_path, micro_batch_tokens=32)
    before = weights(trainer).clone()
    asked = []
    trainer.should_stop = lambda: len(asked) > 1 or bool(asked.append(1))
    with pytest.raises(InterruptedError):
        trainer.policy_step(make_rollouts(), terms=TERMS, learning_rate=1e-3)
    trainer.should_stop = lambda: False
    assert torch.equal(before, weights(trainer))
    assert all(master.grad is None for master in trainer.masters)


def test_icepop_masks_tokens_outside_the_band_and_they_leave_the_denominator(model_path):
    trainer = load(model_path)
    terms = PolicyTerms(objective=Objective(correction="icepop"), temperature=1.0, constant_length=50)
    sample = make_sample(1)
    own = trainer.policy_step([TrainRollout(samples=(sample,), advantage=1.0)], terms=TERMS, learning_rate=0.0)
    sample.behaviour_logprobs[sample.loss_mask] = own.trainer_logprobs[0]
    sample.behaviour_logprobs[-1] -= 3.0  # ratio e^3 > 5
    report = trainer.policy_step([TrainRollout(samples=(sample,), advantage=1.0)], terms=terms, learning_rate=0.0)
    assert report.metrics["masked_fraction"] == pytest.approx(1 / 8)
    assert report.metrics["loss"] == pytest.approx(-1.0)


def test_kl_to_the_starting_model_is_zero_before_the_first_update_and_positive_after(model_path):
    trainer = load(model_path)
    trainer.reference_path = model_path
    terms = PolicyTerms(objective=Objective(kl_coefficient=0.1), temperature=1.0, constant_length=50)
    first = trainer.policy_step(make_rollouts(), terms=terms, learning_rate=1e-2)
    second = trainer.policy_step(make_rollouts(), terms=terms, learning_rate=1e-2)
    assert first.metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert second.metrics["kl"] > 1e-4


def test_an_adapter_trains_only_itself(model_path):
    trainer = load(model_path, adapter="lora", lora_rank=4)
    base = trainer.language_model.core.model.layers[0].self_attn.q_proj.base_layer.weight
    before = base.detach().clone()
    losses = [trainer.supervised_step([make_sample(1)], learning_rate=1e-2).metrics["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]
    assert torch.equal(before, base)
    assert all("lora_" in name for name in trainer.masters.masters)
