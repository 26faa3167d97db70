"""Run by the interpreter of the TRL environment, never imported: TRL's GRPOTrainer on given flat samples.

    python _trl_steps.py MODEL SAMPLES BATCH PRECISION

From:  gyre_web.bench.train: a line on standard input asks for one optimizer step.
To:    one JSON line a step: its seconds.
Holds: everything but the sampling is TRL's: its collation keys, loss, fused output matrix, accumulation, optimizer.
"""

# mypy: ignore-errors

import json
import sys
import tempfile
import time

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def padded(rows, width, *, left=False):
    out = torch.zeros(len(rows), width, dtype=torch.int64)
    for place, row in enumerate(rows):
        if left:
            out[place, width - len(row) :] = torch.as_tensor(row)
        else:
            out[place, : len(row)] = torch.as_tensor(row)
    return out


def build_batch(found):
    """A sample's prompt ends before its first trained token; later untrained tokens are TRL's tool tokens."""
    ends = np.cumsum(found["length"])
    prompts, completions, masks, advantages = [], [], [], []
    for end, length, owner in zip(ends, found["length"], found["owner"], strict=True):
        ids, mask = found["ids"][end - length : end], found["mask"][end - length : end]
        first = int(np.flatnonzero(mask)[0])
        prompts.append(ids[:first])
        completions.append(ids[first:])
        masks.append(mask[first:].astype(np.int64))
        advantages.append(float(found["advantage"][owner]))
    before, after = max(map(len, prompts)), max(map(len, completions))
    return {
        "prompt_ids": padded(prompts, before, left=True),
        "prompt_mask": padded([np.ones(len(row), dtype=np.int64) for row in prompts], before, left=True),
        "completion_ids": padded(completions, after),
        "completion_mask": padded([np.ones(len(row), dtype=np.int64) for row in completions], after),
        "tool_mask": padded(masks, after),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(float(sum(int(row.sum()) for row in masks))),
    }


class GivenSamples(GRPOTrainer):
    given: dict

    def _generate_and_score_completions(self, inputs):
        return {name: value.clone() for name, value in self.given.items()}


class OnDemand(TrainerCallback):
    """A step begins when a line arrives, and its seconds are printed when it ends."""

    def on_step_begin(self, args, state, control, **kwargs):
        if not sys.stdin.readline():
            raise SystemExit(0)
        self.started = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        print(json.dumps({"seconds": time.monotonic() - self.started}), flush=True)


def main():
    model_path, samples, batch, precision = sys.argv[1:5]
    given = build_batch(np.load(samples))
    count = len(given["advantages"])
    directory = tempfile.mkdtemp(prefix="gyre-trl-")
    settings = GRPOConfig(
        output_dir=directory,
        per_device_train_batch_size=int(batch),
        gradient_accumulation_steps=count // int(batch),
        num_generations=count,
        max_completion_length=given["completion_ids"].shape[1],
        max_steps=1000,
        learning_rate=1e-6,
        beta=0.0,
        loss_type="dapo",
        bf16=precision == "bf16",
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        logging_steps=100000,
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation="sdpa")
    trainer = GivenSamples(
        model=model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * count}),
        processing_class=make_tokenizer(),
        callbacks=[OnDemand()],
    )
    trainer.given = given
    print(json.dumps({"ready": True}), flush=True)
    trainer.train()


def make_tokenizer():
    """TRL wants one; it is never asked to do anything."""
    from tokenizers import Tokenizer, models

    made = Tokenizer(models.WordLevel({"a": 0, "<pad>": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<pad>")


if __name__ == "__main__":
    main()
