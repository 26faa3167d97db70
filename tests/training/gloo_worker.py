"""The leader of test_parallel's two processes: steps on a sharded model, results written to a directory."""

import sys
from dataclasses import replace
from pathlib import Path

import django
import torch

from tests.training.tiny import SETTINGS, VOCABULARY
from tests.training.trees import random_rollouts
from training.config import Objective
from training.trainer_group import close_group, open_group

CASES = {
    "data": {"micro_batch_tokens": 128},
    "context": {"micro_batch_tokens": 4096},
    "lora": {"micro_batch_tokens": 4096, "adapter": "lora", "lora_rank": 4},
    "checkpointed": {"micro_batch_tokens": 4096, "activations": "checkpoint"},
}
OBJECTIVES = {"data": {"correction": "icepop"}, "context": {"policy_loss": "gspo", "correction": "none"}}
METRICS = ("loss", "grad_norm", "ratio_max", "entropy", "masked_fraction")


def run(model, case, ranks, directory):
    """Two steps with a checkpoint written and read between them, then a version. returns weights and figures."""
    from training.checkpoints import load_checkpoint, save_checkpoint
    from training.export import save_version
    from training.trainer import PolicyTerms, Trainer

    settings = SETTINGS.model_copy(update=CASES[case])
    trainer = Trainer.load(model, settings=settings, seed=1, ranks=ranks)
    terms = PolicyTerms(objective=Objective(**OBJECTIVES.get(case, {})), temperature=0.9, constant_length=50)
    rollouts = random_rollouts(5, vocabulary=VOCABULARY)
    trainer.policy_step(rollouts, terms=terms, learning_rate=1e-3)
    path = directory / f"{case}-{ranks.world if ranks else 1}"
    save_checkpoint(trainer, path / "checkpoint", counters={"step": 1})
    trainer = Trainer.load(model, settings=settings, seed=1, ranks=ranks)
    load_checkpoint(trainer, path / "checkpoint")
    report = trainer.policy_step(rollouts, terms=terms, learning_rate=1e-3)
    save_version(trainer, path / "version", source=str(model), provenance={}, precision="fp32")
    return {
        "logprobs": [torch.from_numpy(each) for each in report.trainer_logprobs],
        "metrics": {name: report.metrics[name] for name in METRICS},
    }


def main():
    django.setup()
    torch.set_num_threads(1)
    model, directory = Path(sys.argv[1]), Path(sys.argv[2])
    ranks = open_group(2, "data")
    for case in CASES:
        division = "data" if case == "data" else "context"
        torch.save(run(model, case, replace(ranks, division=division), directory), directory / f"{case}.pt")
    close_group()


if __name__ == "__main__":
    main()
