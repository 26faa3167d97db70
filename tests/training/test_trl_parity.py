"""Our losses against TRL's own code on identical logprobs, to 1e-5 (loss and gradient, float64)."""

import json
import random
import subprocess
from pathlib import Path

import pytest
import torch

import gyre_web.bench
from gyre_web.bench import _trl
from training.config import Preference
from training.objectives import POLICY_LOSSES, Clip, Tokens, build_aggregation, kl_penalty
from training.preference import PairLogprobs, pair_losses

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS, WIDTH, LENGTH_LIMIT = 6, 11, 16


def made_case(seed):
    """Six samples of unlike lengths with holes in their masks, far enough off policy that every clip acts."""
    source = random.Random(seed)
    grid = [[source.uniform(-3, 0) for _ in range(WIDTH)] for _ in range(ROWS)]
    lengths = [source.randint(3, WIDTH) for _ in range(ROWS)]
    return {
        "logprobs": grid,
        "old_logprobs": [[value + source.gauss(0, 0.4) for value in row] for row in grid],
        "reference_logprobs": [[value + source.gauss(0, 0.4) for value in row] for row in grid],
        "importance_ratio": [[min(2.0, source.uniform(0.2, 3.0)) for _ in row] for row in grid],
        "mask": [
            [1.0 if (place < length and source.random() < 0.8) or place == 0 else 0.0 for place in range(WIDTH)]
            for length in lengths
        ],
        "advantages": [source.gauss(0, 1) for _ in range(ROWS)],
        "max_completion_length": LENGTH_LIMIT,
    }


# ours -> TRL's names. CISPO's cap there is the weight itself, here what it may exceed 1 by.
CASES = {
    "dapo, token mean": {
        "ours": ("dapo", "token-mean"),
        "trl": {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    },
    "ppo, mean of sequences": {
        "ours": ("ppo_clip", "sequence-mean"),
        "trl": {"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    },
    "ppo, token mean": {
        "ours": ("ppo_clip", "token-mean"),
        "trl": {"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    },
    "ppo, constant length (Dr.GRPO)": {
        "ours": ("ppo_clip", "constant-length"),
        "trl": {"loss_type": "dr_grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    },
    "gspo": {
        "ours": ("gspo", "sequence-mean"),
        "trl": {"loss_type": "grpo", "level": "sequence", "epsilon_low": 0.2, "epsilon_high": 0.28},
    },
    "cispo": {"ours": ("cispo", "token-mean"), "trl": {"loss_type": "cispo", "epsilon_low": 0.2, "epsilon_high": 1.28}},
    "dapo with k3 in the loss": {
        "ours": ("dapo", "token-mean"),
        "trl": {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.1},
    },
    "dapo with truncated importance weights": {
        "ours": ("dapo", "token-mean"),
        "trl": {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
        "weighted": True,
    },
}


def ask_trl(script, asked):
    """All cases in one process: importing TRL takes longest."""
    try:
        python = _trl.trl_python()
    except _trl.TrlMissing as missing:
        pytest.skip(f"NOT CHECKED HERE (peer): {missing}")
    done = subprocess.run(
        [str(python), str(Path(gyre_web.bench.__path__[0]) / script)], input=json.dumps(asked), capture_output=True,
        text=True, env=_trl.environment(), timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def trl_answers():
    asked = []
    for number, case in enumerate(CASES.values()):
        values = made_case(number)
        if "beta" not in case["trl"]:
            del values["reference_logprobs"]
        if not case.get("weighted"):
            del values["importance_ratio"]
        asked.append(values | case["trl"])
    return dict(zip(CASES, ask_trl("_trl_losses.py", asked), strict=True))


@pytest.fixture(scope="module")
def theirs():
    return trl_answers()


def ours(number, case):
    values = made_case(number)
    mask = torch.tensor(values["mask"]).bool()
    logprobs = torch.tensor(values["logprobs"], dtype=torch.float64).requires_grad_()
    sequence_T = torch.arange(ROWS)[:, None].expand(mask.shape)[mask]

    def trained(name):
        return torch.tensor(values[name], dtype=torch.float64)[mask]

    tokens = Tokens(
        trainer_logprobs_T=logprobs[mask],
        old_logprobs_T=trained("old_logprobs"),
        advantages_T=torch.tensor(values["advantages"], dtype=torch.float64)[sequence_T],
        sequence_T=sequence_T,
    )
    kind, aggregation_kind = case["ours"]
    losses_T = POLICY_LOSSES[kind](tokens, Clip(low=0.2, high=0.28)).losses_T
    if case.get("weighted"):
        losses_T = losses_T * trained("importance_ratio")
    if beta := case["trl"].get("beta"):
        kl_T = kl_penalty(
            "k3", trainer_logprobs_T=tokens.trainer_logprobs_T, reference_logprobs_T=trained("reference_logprobs")
        )
        losses_T = losses_T + beta * kl_T
    aggregation = build_aggregation(
        aggregation_kind, sequence_T=sequence_T, rollout_T=sequence_T, num_rollouts=ROWS, constant_length=LENGTH_LIMIT
    )
    loss = (losses_T * aggregation.weights_T).sum() / aggregation.denominator
    loss.backward()
    return float(loss.detach()), logprobs.grad


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_trls(name, theirs):
    loss, gradient = ours(list(CASES).index(name), CASES[name])
    assert loss == pytest.approx(theirs[name]["loss"], abs=1e-5)
    assert torch.allclose(gradient, torch.tensor(theirs[name]["gradient"], dtype=torch.float64), atol=1e-5)


# TRL smooths labels in its `aot` kinds only. Those sort the scores of a batch, which for a single pair is nothing.
PREFERENCES = {
    "dpo": {"ours": {"beta": 0.3}, "trl": {"loss_type": "sigmoid"}, "pairs": 3},
    "dpo with smoothed labels": {
        "ours": {"beta": 0.3, "label_smoothing": 0.1}, "trl": {"loss_type": "aot_unpaired"}, "pairs": 1,
    },
    "ipo": {"ours": {"loss": "ipo", "beta": 0.25}, "trl": {"loss_type": "ipo"}, "pairs": 3},
}  # fmt: skip


def made_pairs(number, pairs):
    """[2P][T], chosen first, of unlike lengths with holes."""
    values = made_case(100 + number)
    chosen = {name: values[name][: 2 * pairs] for name in ("logprobs", "reference_logprobs", "mask")}
    sums = [
        sum(value * kept for value, kept in zip(row, mask, strict=True))
        for row, mask in zip(chosen.pop("reference_logprobs"), chosen["mask"], strict=True)
    ]
    return chosen | {"reference_sums": sums}


@pytest.fixture(scope="module")
def their_preferences():
    asked = [
        made_pairs(number, case["pairs"])
        | {"beta": case["ours"]["beta"], "label_smoothing": case["ours"].get("label_smoothing", 0.0)}
        | case["trl"]
        for number, case in enumerate(PREFERENCES.values())
    ]
    return dict(zip(PREFERENCES, ask_trl("_trl_preferences.py", asked), strict=True))


@pytest.mark.parametrize("name", PREFERENCES)
def test_the_preference_loss_and_its_gradient_equal_trls(name, their_preferences):
    case = PREFERENCES[name]
    values = made_pairs(list(PREFERENCES).index(name), case["pairs"])
    mask = torch.tensor(values["mask"], dtype=torch.float64)
    logprobs = torch.tensor(values["logprobs"], dtype=torch.float64).requires_grad_()
    sums, lengths, reference = (logprobs * mask).sum(1), mask.sum(1), torch.tensor(values["reference_sums"]).double()
    chosen, rejected = slice(None, case["pairs"]), slice(case["pairs"], None)
    losses_P, _ = pair_losses(
        PairLogprobs(
            chosen_P=sums[chosen],
            rejected_P=sums[rejected],
            reference_chosen_P=reference[chosen],
            reference_rejected_P=reference[rejected],
            lengths_chosen_P=lengths[chosen],
            lengths_rejected_P=lengths[rejected],
        ),
        Preference(**case["ours"]),
    )
    losses_P.mean().backward()
    theirs = their_preferences[name]
    assert float(losses_P.mean().detach()) == pytest.approx(theirs["loss"], abs=1e-5)
    assert torch.allclose(logprobs.grad, torch.tensor(theirs["gradient"], dtype=torch.float64), atol=1e-5)
