"""Objectives: hand-worked numbers, a float64 reference in plain Python, and what aggregation must not depend on."""

import math
import random

import pytest
import torch

from training.corrections import Bounds, build_correction, measure_mismatch, old_logprobs
from training.objectives import POLICY_LOSSES, Clip, Tokens, build_aggregation, charge_kl, kl_penalty

CLIP = Clip(low=0.2, high=0.28)
BOUNDS = Bounds(cap=2.0, low=0.5, high=5.0)


def tokens_of(ratios, advantages, sequences=None):
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    new = old + torch.tensor(ratios, dtype=torch.float64).log()
    return Tokens(
        trainer_logprobs_T=new.requires_grad_(),
        old_logprobs_T=old,
        advantages_T=torch.tensor(advantages, dtype=torch.float64),
        sequence_T=torch.tensor(sequences if sequences is not None else [0] * len(ratios)),
    )


def losses(kind, *args):
    return POLICY_LOSSES[kind](tokens_of(*args), CLIP).losses_T.tolist()


def test_dapo_clips_above_1_28_where_the_advantage_is_positive_and_below_0_8_where_it_is_negative():
    found = losses("dapo", [1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0])
    assert found == pytest.approx([-1.28, 1.5, -0.5, 0.8])


def test_ppo_has_the_same_width_on_both_sides():
    assert losses("ppo_clip", [1.5, 0.5], [1.0, -1.0]) == pytest.approx([-1.2, 0.8])


def test_a_clipped_token_has_no_gradient_and_is_counted():
    tokens = tokens_of([1.5, 1.1], [1.0, 1.0])
    result = POLICY_LOSSES["dapo"](tokens, CLIP)
    (gradient,) = torch.autograd.grad(result.losses_T.sum(), tokens.trainer_logprobs_T)
    assert gradient.tolist() == pytest.approx([0.0, -1.1])
    assert result.clipped_T.tolist() == [True, False]


def test_gspo_uses_the_geometric_mean_of_each_sequence():
    # sequence 0: sqrt(1.44 * 1) = 1.2; sequence 1: 0.5 -> clipped to 0.8 for a negative advantage
    assert losses("gspo", [1.44, 1.0, 0.5], [1.0, 1.0, -1.0], [0, 0, 1]) == pytest.approx([-1.2, -1.2, 0.8])


def test_cispo_keeps_the_gradient_of_a_capped_token_with_weight_1_28():
    tokens = tokens_of([2.0, 0.5], [1.0, 1.0])
    loss = POLICY_LOSSES["cispo"](tokens, CLIP).losses_T.sum()
    (gradient,) = torch.autograd.grad(loss, tokens.trainer_logprobs_T)
    assert gradient.tolist() == pytest.approx([-1.28, -0.5])


def test_reinforce_is_minus_advantage_times_logprob():
    assert losses("reinforce", [1.0], [2.0]) == pytest.approx([2.0])


def plain_python(kind, new, old, advantage, sequence):
    """The formulas again, token by token in float64, written from the papers without tensors."""
    ratios = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
    if kind == "gspo":
        for name in set(sequence):
            places = [index for index, value in enumerate(sequence) if value == name]
            mean = math.exp(sum(new[index] - old[index] for index in places) / len(places))
            for index in places:
                ratios[index] = mean
    high = 1.2 if kind == "ppo_clip" else 1.28
    found = []
    for ratio, logprob, a in zip(ratios, new, advantage, strict=True):
        if kind == "reinforce":
            found.append(-a * logprob)
        elif kind == "cispo":
            found.append(-min(ratio, 1.28) * a * logprob)
        else:
            found.append(-min(ratio * a, min(max(ratio, 0.8), high) * a))
    return found


@pytest.mark.parametrize("kind", POLICY_LOSSES)
def test_float32_losses_equal_the_float64_reference_to_1e_5(kind):
    source = random.Random(3)
    new = [source.uniform(-3, 0) for _ in range(200)]
    old = [value + source.gauss(0, 0.3) for value in new]
    advantage = [source.gauss(0, 1) for _ in range(200)]
    sequence = sorted(source.randrange(20) for _ in range(200))
    found = POLICY_LOSSES[kind](
        Tokens(
            trainer_logprobs_T=torch.tensor(new),
            old_logprobs_T=torch.tensor(old),
            advantages_T=torch.tensor(advantage),
            sequence_T=torch.tensor(sequence),
        ),
        CLIP,
    ).losses_T
    assert found.tolist() == pytest.approx(plain_python(kind, new, old, advantage, sequence), abs=1e-5)


def aggregate(kind, values, sequence, rollout):
    aggregation = build_aggregation(
        kind,
        sequence_T=torch.tensor(sequence),
        rollout_T=torch.tensor(rollout),
        num_rollouts=len(set(rollout)),
        constant_length=10,
    )
    return float((aggregation.weights_T * torch.tensor(values)).sum() / aggregation.denominator)


# rollout 0: samples 0 (tokens 1, 3) and 1 (token 8); rollout 1: sample 2 (token 6)
VALUES, SEQUENCE, ROLLOUT = [1.0, 3.0, 8.0, 6.0], [0, 0, 1, 2], [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("two-level", ((1 + 3 + 8) / 3 + 6) / 2),
        ("token-mean", 18 / 4),
        ("sequence-mean", ((2 + 8) / 2 + 6) / 2),
        ("constant-length", (12 / 10 + 6 / 10) / 2),
    ],
)
def test_aggregations_by_hand(kind, expected):
    assert aggregate(kind, VALUES, SEQUENCE, ROLLOUT) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["two-level", "token-mean", "sequence-mean", "constant-length"])
def test_cutting_a_rollout_into_more_samples_of_equal_length_does_not_change_its_weight(kind):
    values, rollout = [1.0, 3.0, 8.0, 2.0, 6.0], [0, 0, 0, 0, 1]
    whole = aggregate(kind, values, [0, 0, 0, 0, 1], rollout)
    assert aggregate(kind, values, [0, 0, 1, 1, 2], rollout) == pytest.approx(whole)


def test_kl_estimators_by_hand():
    args = {"trainer_logprobs_T": torch.tensor([-1.0]), "reference_logprobs_T": torch.tensor([-1.5])}
    assert kl_penalty("k1", **args).item() == pytest.approx(0.5)
    assert kl_penalty("k2", **args).item() == pytest.approx(0.125)
    assert kl_penalty("k3", **args).item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)


def correction(kind):
    proximal = torch.tensor([0.0, 0.0, 0.0]) + torch.tensor([3.0, 1.0, 0.25]).log()
    return build_correction(
        kind,
        proximal_T=proximal,
        behaviour_T=torch.zeros(3),
        sequence_T=torch.zeros(3, dtype=torch.int64),
        bounds=BOUNDS,
    )


@pytest.mark.parametrize(
    ("kind", "weights", "keep"),
    [
        ("none", [1, 1, 1], [True] * 3),
        ("tis", [2, 1, 0.25], [True] * 3),
        ("decoupled", [3, 1, 0.25], [True] * 3),
        ("icepop", [3, 1, 0], [True, True, False]),
    ],
)
def test_corrections_by_hand(kind, weights, keep):
    found = correction(kind)
    assert found.weights_T.tolist() == pytest.approx(weights)
    assert found.keep_T.tolist() == keep


def test_only_without_a_correction_does_the_ratio_compare_with_the_engine():
    proximal, behaviour = torch.tensor([-1.0]), torch.tensor([-2.0])
    assert old_logprobs("none", proximal_T=proximal, behaviour_T=behaviour).item() == -2.0
    assert old_logprobs("tis", proximal_T=proximal, behaviour_T=behaviour).item() == -1.0


def test_mismatch_of_equal_logprobs_is_zero_and_else_by_hand():
    same = measure_mismatch(torch.tensor([-1.0]), torch.tensor([-1.0]))
    assert (same.mean, same.max, same.kl) == (0.0, 0.0, 0.0)
    found = measure_mismatch(torch.tensor([-1.0, -2.0]), torch.tensor([-1.1, -2.0]))
    assert found.mean == pytest.approx(0.05, abs=1e-6)
    assert found.max == pytest.approx(0.1, abs=1e-6)
    assert found.kl == pytest.approx((math.exp(0.1) - 1 - 0.1) / 2, abs=1e-6)


def test_kl_in_the_reward_with_k1_has_the_gradient_of_k2_in_the_loss_on_policy():
    torch.manual_seed(0)
    new = torch.randn(50, dtype=torch.float64).requires_grad_()
    reference, advantages, beta = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64), 0.3

    def gradient(advantages_T, extra):
        tokens = Tokens(
            trainer_logprobs_T=new, old_logprobs_T=new.detach(), advantages_T=advantages_T,
            sequence_T=torch.zeros(50, dtype=torch.int64),
        )  # fmt: skip
        return torch.autograd.grad((POLICY_LOSSES["dapo"](tokens, CLIP).losses_T + extra).sum(), new)[0]

    def kl(kind):
        return kl_penalty(kind, trainer_logprobs_T=new, reference_logprobs_T=reference)

    charged = gradient(charge_kl(advantages, kl("k1"), coefficient=beta), 0.0)
    assert torch.allclose(charged, gradient(advantages, beta * kl("k2")), atol=1e-12)


def test_icepop_by_sequence_keeps_or_drops_whole_samples_by_their_geometric_mean():
    # sample 0: ratios 8 and 1/2, mean 2; sample 1: 8 and 8, mean 8
    found = build_correction(
        "icepop-sequence",
        proximal_T=torch.tensor([8.0, 0.5, 8.0, 8.0]).log(),
        behaviour_T=torch.zeros(4),
        sequence_T=torch.tensor([0, 0, 1, 1]),
        bounds=BOUNDS,
    )
    assert found.keep_T.tolist() == [True, True, False, False]
    assert found.weights_T.tolist() == pytest.approx([8, 0.5, 0, 0])


@pytest.mark.parametrize("kind", ["none", "tis", "icepop", "icepop-sequence", "decoupled"])
def test_float32_corrections_equal_a_float64_reference_in_plain_python(kind):
    source = random.Random(4)
    proximal = [source.uniform(-4, 0) for _ in range(100)]
    behaviour = [value + source.gauss(0, 1.0) for value in proximal]
    sequence = sorted(source.randrange(10) for _ in range(100))
    ratios = [math.exp(p - b) for p, b in zip(proximal, behaviour, strict=True)]
    means = {
        name: math.exp(
            sum(p - b for p, b, s in zip(proximal, behaviour, sequence, strict=True) if s == name)
            / sequence.count(name)
        )
        for name in set(sequence)
    }
    expected = {
        "none": [1.0] * 100,
        "tis": [min(r, 2.0) for r in ratios],
        "decoupled": ratios,
        "icepop": [r if 0.5 <= r <= 5.0 else 0.0 for r in ratios],
        "icepop-sequence": [r if 0.5 <= means[s] <= 5.0 else 0.0 for r, s in zip(ratios, sequence, strict=True)],
    }[kind]
    found = build_correction(
        kind,
        proximal_T=torch.tensor(proximal),
        behaviour_T=torch.tensor(behaviour),
        sequence_T=torch.tensor(sequence),
        bounds=BOUNDS,
    )
    assert found.weights_T.tolist() == pytest.approx(expected, rel=1e-5)


def test_kl_estimators_equal_a_float64_reference():
    source = random.Random(5)
    new, reference = ([source.uniform(-4, 0) for _ in range(100)] for _ in range(2))
    for kind, formula in {"k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - d - 1}.items():
        found = kl_penalty(kind, trainer_logprobs_T=torch.tensor(new), reference_logprobs_T=torch.tensor(reference))
        expected = [formula(r - n) for n, r in zip(new, reference, strict=True)]
        assert found.tolist() == pytest.approx(expected, abs=1e-5)
