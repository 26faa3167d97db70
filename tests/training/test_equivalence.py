"""Ways of computing a step that must give the same update: the trainer's specification.

Random trees of the documented generator's kind on a tiny random model, in float64 unless the test says otherwise.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.training.tiny import SETTINGS, VOCABULARY, make_rollouts, make_sample, save_tiny_model
from tests.training.trees import random_rollouts
from training.checkpoints import load_checkpoint, save_checkpoint
from training.config import Objective
from training.export import save_version
from training.layout import distinct_tokens
from training.master_weights import MasterWeights
from training.packing import build_micro_batches
from training.trainer import PolicyTerms, Trainer, TrainRollout

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def terms(**objective):
    return PolicyTerms(objective=Objective(**objective), temperature=0.9, constant_length=50)


def load(path, *, double=True, **changes):
    trainer = Trainer.load(path, settings=SETTINGS.model_copy(update=changes), seed=1)
    if double:
        trainer.language_model.module.double()
        trainer.masters = MasterWeights(trainer.language_model.module, precision="fp32")
    trainer.optimizer = torch.optim.SGD(list(trainer.masters), lr=1.0)
    return trainer


def moved(path, rollouts, policy, **changes):
    """The update of one step, as one vector, and the step's report."""
    trainer = load(path, **changes)
    before = flat(trainer)
    report = trainer.policy_step(rollouts, terms=policy, learning_rate=1.0)
    return flat(trainer) - before, report


def flat(trainer):
    return torch.cat([master.detach().flatten() for master in trainer.masters]).clone()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", ["dapo", "gspo"])
def test_packed_trees_move_the_weights_like_samples_one_by_one(model_path, seed, loss):
    rollouts = random_rollouts(seed, vocabulary=VOCABULARY)
    policy = terms(policy_loss=loss, correction="none", entropy_coefficient=0.01)
    alone, flat_report = moved(model_path, rollouts, policy, packing="flat", micro_batch_tokens=64)
    packed, report = moved(model_path, rollouts, policy, packing="tree", micro_batch_tokens=4096)
    assert torch.allclose(packed, alone, atol=1e-5 * float(alone.abs().max()))
    for one, other in zip(report.trainer_logprobs, flat_report.trainer_logprobs, strict=True):
        assert np.allclose(one, other, atol=1e-5)


def test_every_distinct_token_is_computed_once_and_flat_samples_compute_all(model_path):
    rollouts = random_rollouts(7, vocabulary=VOCABULARY)
    samples = [sample for rollout in rollouts for sample in rollout.samples if sample.num_trained]
    _, packed = moved(model_path, rollouts, terms(), packing="tree", micro_batch_tokens=4096)
    _, alone = moved(model_path, rollouts, terms(), packing="flat", micro_batch_tokens=4096)
    assert packed.metrics["computed_tokens"] == distinct_tokens([sample.ids for sample in samples])
    assert alone.metrics["computed_tokens"] == packed.metrics["flat_tokens"] == sum(s.num_tokens for s in samples)
    assert alone.metrics["computed_tokens"] > 1.5 * packed.metrics["computed_tokens"]


@pytest.mark.parametrize("budget", [64, 150, 400])
def test_a_tree_cut_into_micro_batches_moves_the_weights_like_the_whole(model_path, budget):
    rollouts = random_rollouts(3, vocabulary=VOCABULARY)
    whole, _ = moved(model_path, rollouts, terms(), micro_batch_tokens=8192)
    cut, _ = moved(model_path, rollouts, terms(), micro_batch_tokens=budget)
    assert torch.allclose(cut, whole, atol=1e-5 * float(whole.abs().max()))


def test_packed_trees_in_bf16_stay_within_its_rounding(model_path):
    """Stated tolerance: the update's direction to 2 %, each logprob to 0.05."""
    rollouts = random_rollouts(5, vocabulary=VOCABULARY)
    exact, _ = moved(model_path, rollouts, terms(), double=False)
    found, report = moved(model_path, rollouts, terms(), double=False, precision="bf16")
    _, alone = moved(model_path, rollouts, terms(), double=False, precision="bf16", packing="flat")
    assert torch.nn.functional.cosine_similarity(found, exact, dim=0) > 0.98
    for one, other in zip(report.trainer_logprobs, alone.trainer_logprobs, strict=True):
        assert np.allclose(one, other, atol=0.05)


@pytest.mark.parametrize("activations", ["checkpoint", "offload"])
def test_computing_activations_again_or_moving_them_away_changes_nothing(model_path, activations):
    rollouts = random_rollouts(2, vocabulary=VOCABULARY)
    kept, _ = moved(model_path, rollouts, terms())
    found, _ = moved(model_path, rollouts, terms(), activations=activations)
    assert torch.allclose(found, kept, atol=1e-9)


@pytest.mark.parametrize("kind", ["two-level", "token-mean", "sequence-mean", "constant-length"])
def test_one_micro_batch_of_eight_rollouts_equals_eight_of_one(model_path, kind):
    """And both equal the sum of eight steps' gradients, weighed by hand for the two-level mean."""
    rollouts = [TrainRollout(samples=(make_sample(n, length=24),), advantage=(-1.0) ** n * (n + 1)) for n in range(8)]
    together, _ = moved(model_path, rollouts, terms(aggregation=kind), micro_batch_tokens=8 * 24, packing="flat")
    apart, _ = moved(model_path, rollouts, terms(aggregation=kind), micro_batch_tokens=64, packing="flat")
    assert torch.allclose(together, apart, atol=1e-9)


def test_the_two_level_mean_does_not_depend_on_how_many_samples_carry_a_rollouts_tokens(model_path):
    """One sample that trains 8 tokens, or two that train 4 of the same each: one update."""
    sample = make_sample(1, length=30, trained=8)
    masks = [np.zeros(30, dtype=np.bool_), np.zeros(30, dtype=np.bool_)]
    masks[0][22:26], masks[1][26:30] = True, True
    halves = [type(sample)(**{**sample.__dict__, "loss_mask": mask}) for mask in masks]
    other = TrainRollout(samples=(make_sample(2),), advantage=-1.0)
    for packing in ("tree", "flat"):
        one, _ = moved(model_path, [TrainRollout(samples=(sample,), advantage=1.0), other], terms(), packing=packing)
        two, _ = moved(
            model_path, [TrainRollout(samples=tuple(halves), advantage=1.0), other], terms(), packing=packing
        )
        assert torch.allclose(one, two, atol=1e-9)


def test_a_gspo_ratio_does_not_see_tokens_that_a_correction_masked(model_path):
    """The sequence's mean runs over what is trained: the same step with the masked token never trained."""
    sample = make_sample(4, length=20, trained=6)
    own = load(model_path).policy_step(
        [TrainRollout(samples=(sample,), advantage=1.0)], terms=terms(), learning_rate=0.0
    )
    sample.behaviour_logprobs[sample.loss_mask] = own.trainer_logprobs[0]
    shorter = type(sample)(**{**sample.__dict__, "loss_mask": sample.loss_mask & (np.arange(20) < 19)})
    off = sample.behaviour_logprobs.copy()
    off[-1] -= 4.0
    masked = type(sample)(**{**sample.__dict__, "behaviour_logprobs": off})
    policy = terms(policy_loss="gspo", correction="icepop")
    with_hole, report = moved(model_path, [TrainRollout(samples=(masked,), advantage=1.0)], policy)
    without, _ = moved(model_path, [TrainRollout(samples=(shorter,), advantage=1.0)], policy)
    assert report.metrics["masked_fraction"] == pytest.approx(1 / 6)
    assert torch.allclose(with_hole, without, atol=1e-9)


def test_a_resumed_trainer_with_packed_trees_equals_the_uninterrupted_one_bit_for_bit(model_path, tmp_path):
    rollouts = random_rollouts(1, vocabulary=VOCABULARY)

    def fresh():
        return Trainer.load(model_path, settings=SETTINGS.model_copy(update={"micro_batch_tokens": 512}), seed=1)

    straight, resumed = fresh(), fresh()
    straight.policy_step(rollouts, terms=terms(), learning_rate=1e-3)
    save_checkpoint(straight, tmp_path / "step-1", counters={"step": 1})
    straight.policy_step(rollouts, terms=terms(), learning_rate=1e-3)
    load_checkpoint(resumed, tmp_path / "step-1")
    resumed.policy_step(rollouts, terms=terms(), learning_rate=1e-3)
    assert torch.equal(flat(straight), flat(resumed))


def adapted(path):
    trainer = Trainer.load(path, settings=SETTINGS.model_copy(update={"adapter": "lora", "lora_rank": 4}), seed=1)
    for _ in range(3):
        trainer.policy_step(make_rollouts(), terms=terms(), learning_rate=1e-2)
    return trainer


def test_a_published_merged_adapter_gives_the_logprobs_of_the_live_one(model_path, tmp_path):
    trainer = adapted(model_path)
    save_version(trainer, tmp_path / "v1", source=str(model_path), provenance={}, precision="fp32")
    assert not [name for name in load_file(tmp_path / "v1/model.safetensors") if "lora" in name]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "v1", dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    sample = make_sample(11, length=40, trained=39)
    (batch,) = build_micro_batches([sample], budget_tokens=64)
    live, _ = trainer.language_model.token_logprobs(batch, temperature=1.0)
    ids = torch.from_numpy(sample.ids)

    def logprobs(model):
        with torch.no_grad():
            return torch.log_softmax(model(ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]

    assert torch.allclose(live, logprobs(merged), atol=1e-5)
    assert not torch.allclose(live, logprobs(plain), atol=1e-3)


def test_a_resumed_adapter_equals_the_uninterrupted_one(model_path, tmp_path):
    straight = adapted(model_path)
    save_checkpoint(straight, tmp_path / "step-3", counters={"step": 3})
    resumed = Trainer.load(model_path, settings=SETTINGS.model_copy(update={"adapter": "lora", "lora_rank": 4}), seed=1)
    load_checkpoint(resumed, tmp_path / "step-3")
    for trainer in (straight, resumed):
        trainer.policy_step(make_rollouts(), terms=terms(), learning_rate=1e-2)
    assert torch.equal(flat(straight), flat(resumed))
