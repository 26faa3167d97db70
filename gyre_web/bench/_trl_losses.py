"""Run by the interpreter of the TRL environment, never imported: TRL's loss of given logprobs, and its gradient.

From:  JSON on standard input, a list of cases: settings, [B][T] logprobs, masks, advantages.
To:    JSON on standard output, for each case: loss and gradient [B][T] with respect to the trainer's logprobs.
Holds: GRPOTrainer._compute_loss itself runs; only the model's forward pass is replaced by the given logprobs.
"""

# mypy: ignore-errors

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from trl import GRPOTrainer


def make_trainer(case, logprobs):
    """A GRPOTrainer without a model."""
    trainer = object.__new__(GRPOTrainer)
    trainer.args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda value: value,
        reduce=lambda value, reduction: value,
        gather_for_metrics=lambda value: value,
    )
    trainer._metrics = {"train": defaultdict(list)}
    trainer.current_gradient_accumulation_steps = 1
    trainer.top_entropy_quantile = 1.0
    trainer.off_policy_mask_threshold = None
    trainer.use_vllm = "importance_ratio" in case
    trainer.vllm_importance_sampling_correction = trainer.use_vllm
    trainer.aux_loss_enabled = False
    trainer._entropy_bonus_enabled = False
    trainer.importance_sampling_level = case.get("level", "token")
    trainer.loss_type = case["loss_type"]
    trainer.epsilon_low, trainer.epsilon_high = case["epsilon_low"], case["epsilon_high"]
    trainer.beta = case.get("beta", 0.0)
    trainer.max_completion_length = case["max_completion_length"]
    trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logprobs, torch.zeros_like(logprobs), None)
    return trainer


def answer(case):
    def tensor(name):
        return torch.tensor(case[name], dtype=torch.float64)

    logprobs = tensor("logprobs").requires_grad_()
    mask = tensor("mask")
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.int64),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.int64),
        "completion_mask": mask,
        "advantages": tensor("advantages"),
        "old_per_token_logps": tensor("old_logprobs"),
        "num_items_in_batch": mask.sum(),
    }
    if "reference_logprobs" in case:
        inputs["ref_per_token_logps"] = tensor("reference_logprobs")
    if "importance_ratio" in case:
        inputs["importance_sampling_ratio"] = tensor("importance_ratio")
    loss = make_trainer(case, logprobs)._compute_loss(None, inputs)
    loss.backward()
    return {"loss": float(loss.detach()), "gradient": logprobs.grad.tolist()}


if __name__ == "__main__":
    json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
