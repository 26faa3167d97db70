"""Run by the interpreter of the TRL environment, never imported: TRL's preference loss of given logprobs, and its gradient.

From:  JSON on standard input, a list of cases: settings, [2P][T] logprobs (chosen first), reference sums, masks.
To:    JSON on standard output, for each case: loss (mean over pairs) and gradient [2P][T].
Holds: DPOTrainer._compute_loss itself runs; only the model's forward pass is replaced by the given logprobs.
"""

# mypy: ignore-errors

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl import DPOTrainer


def make_trainer(case):
    """A DPOTrainer without a model."""
    trainer = object.__new__(DPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = SimpleNamespace(
        device="cpu", gather=lambda value: value, gather_for_metrics=lambda value: value
    )
    trainer.aux_loss_enabled = trainer.use_weighting = False
    trainer.ld_alpha = None
    trainer.precompute_ref_logps = True
    trainer.f_divergence_type = "reverse_kl"
    trainer.loss_types, trainer.loss_weights = [case["loss_type"]], [1.0]
    trainer.beta, trainer.label_smoothing = case["beta"], case.get("label_smoothing", 0.0)
    trainer._metrics = {"train": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    return trainer


def answer(case):
    mask = torch.tensor(case["mask"], dtype=torch.int64)
    logprobs = torch.tensor(case["logprobs"], dtype=torch.float64).requires_grad_()
    outputs = SimpleNamespace(
        log_probs=logprobs * mask,
        entropy=torch.zeros_like(logprobs),
        mean_logits=torch.zeros_like(logprobs),
        is_top1=torch.zeros_like(mask).bool(),
    )
    prompt = torch.zeros(len(mask), 1, dtype=torch.int64)
    chosen, rejected = torch.tensor(case["reference_sums"], dtype=torch.float64).chunk(2)
    inputs = {
        "input_ids": torch.zeros(len(mask), mask.shape[1] + 1, dtype=torch.int64),
        "attention_mask": torch.ones(len(mask), mask.shape[1] + 1, dtype=torch.int64),
        "completion_mask": torch.cat([prompt, mask], dim=1),
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    loss = make_trainer(case)._compute_loss(lambda **kwargs: outputs, inputs, return_outputs=False)
    loss.backward()
    return {"loss": float(loss.detach()), "gradient": logprobs.grad.tolist()}


if __name__ == "__main__":
    json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
