"""Time optimizer steps on given samples, one at a time on demand: `python -m training.speed_check MODEL SAMPLES`.

From:  gyre_web.bench.train (a line `tree` or `flat` on standard input asks for a step packed that way).
To:    one JSON line a step: seconds, computed and flat tokens, sums of the update.
Holds: it runs with the environment that the trainer process gives itself.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from uuid import UUID

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path, help="A file that save_rollouts wrote.")
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--activations", default="keep")
    arguments = parser.parse_args()
    from training.config import Objective, Optimization
    from training.memory import peak_bytes
    from training.trainer import PolicyTerms, Trainer

    rollouts = load_rollouts(arguments.samples)
    settings = Optimization(
        micro_batch_tokens=arguments.micro_batch_tokens,
        precision=arguments.precision,
        activations=arguments.activations,
    )
    trainer = Trainer.load(arguments.model, settings=settings, seed=1)
    terms = PolicyTerms(objective=Objective(), temperature=1.0, constant_length=1000)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        trainer.settings = settings.model_copy(update={"packing": line.strip()})
        started = time.monotonic()
        report = trainer.policy_step(rollouts, terms=terms, learning_rate=1e-6)
        found = {
            "seconds": time.monotonic() - started,
            "computed_tokens": report.metrics["computed_tokens"],
            "flat_tokens": report.metrics["flat_tokens"],
            "loss": report.metrics["loss"],
            "grad_norm": report.metrics["grad_norm"],
            "peak_bytes": peak_bytes(),
        }
        print(json.dumps(found), flush=True)


def save_rollouts(rollouts, path: Path) -> None:  # type: ignore[no-untyped-def]
    """All samples in one npz; owner: the rollout's number for each sample."""
    samples = [(number, sample) for number, rollout in enumerate(rollouts) for sample in rollout.samples]
    np.savez(
        path,
        ids=np.concatenate([sample.ids for _, sample in samples]),
        mask=np.concatenate([sample.loss_mask for _, sample in samples]),
        logprobs=np.concatenate([sample.behaviour_logprobs for _, sample in samples]),
        length=np.array([sample.num_tokens for _, sample in samples]),
        owner=np.array([number for number, _ in samples]),
        advantage=np.array([rollout.advantage for rollout in rollouts]),
    )


def load_rollouts(path: Path):  # type: ignore[no-untyped-def]
    from training.selection import Piece, Sample
    from training.trainer import TrainRollout

    found = np.load(path)
    ends = np.cumsum(found["length"])
    samples: list[list[Sample]] = [[] for _ in found["advantage"]]
    for end, length, owner in zip(ends, found["length"], found["owner"], strict=True):
        part = slice(end - length, end)
        samples[owner].append(
            Sample(
                rollout_id=UUID(int=int(owner)),
                pieces=(Piece(node=0, start=0, stop=int(length), opener_length=0),),
                ids=found["ids"][part],
                loss_mask=found["mask"][part],
                behaviour_logprobs=found["logprobs"][part],
            )
        )
    return [
        TrainRollout(samples=tuple(each), advantage=float(advantage))
        for each, advantage in zip(samples, found["advantage"], strict=True)
    ]


if __name__ == "__main__":
    main()
