"""Does the trainer's memory stay bounded over many steps of changing shapes? `python -m training.memory_check MODEL`.

To:    one JSON line: most resident bytes after each tenth of the steps (`curve`), and whether they stayed below the
       limit (`ok`).
Holds: it runs with the environment that the trainer process gives itself, on samples made up from a seed.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path
from uuid import UUID

import numpy as np

PREPARED = "GYRE_MEMORY_CHECK"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face directory.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=72, help="A step trains so many.")
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--kl-coefficient", type=float, default=0.05, help="As in the demo; 0: no reference model.")
    parser.add_argument("--limit-bytes", type=float, default=8e9)
    arguments = parser.parse_args()
    if not os.environ.get(PREPARED):
        from training.memory import trainer_environment, usable_cores

        cores = int(os.environ.get("OMP_NUM_THREADS", usable_cores()))
        environment = trainer_environment(os.environ, cores=cores) | {PREPARED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    return check(arguments)


def check(arguments: argparse.Namespace) -> int:
    from training.config import Objective, Optimization
    from training.memory import peak_bytes, release_free_memory
    from training.trainer import PolicyTerms, Trainer, TrainRollout

    source = random.Random(1)
    settings = Optimization(micro_batch_tokens=arguments.micro_batch_tokens, precision=arguments.precision)
    trainer = Trainer.load(arguments.model, settings=settings, seed=1)
    trainer.reference_path = arguments.model
    objective = Objective(kl_coefficient=arguments.kl_coefficient)
    terms = PolicyTerms(objective=objective, temperature=1.0, constant_length=600)
    vocabulary = trainer.language_model.core.config.vocab_size
    curve, speeds = [], []
    for step in range(1, arguments.steps + 1):
        rollouts = [
            TrainRollout(samples=(make_sample(source, vocabulary),), advantage=source.choice((-1.0, 1.0)))
            for _ in range(arguments.rollouts)
        ]
        speeds.append(trainer.policy_step(rollouts, terms=terms, learning_rate=1e-6).metrics["train_tokens_per_s"])
        release_free_memory()
        if step % max(arguments.steps // 10, 1) == 0:
            curve.append([step, peak_bytes()])
            print(f"step {step}: {peak_bytes() / 1e9:.2f} GB", file=sys.stderr, flush=True)
    ok = peak_bytes() < arguments.limit_bytes
    found = {"name": "trainer_memory", "curve": curve, "peak_bytes": peak_bytes(), "tokens_per_s": speeds, "ok": ok}
    print(json.dumps(found))
    return 0 if ok else 1


def make_sample(source: random.Random, vocabulary: int):  # type: ignore[no-untyped-def]
    """Like the demo's: 150 to 350 tokens, a little under half of them sampled."""
    from training.selection import Piece, Sample

    size = source.randint(150, 350)
    mask = np.arange(size) >= size * 0.55
    return Sample(
        rollout_id=UUID(int=source.getrandbits(64)),
        pieces=(Piece(node=0, start=0, stop=size, opener_length=0),),
        ids=np.array([source.randrange(vocabulary) for _ in range(size)]),
        loss_mask=mask,
        behaviour_logprobs=np.full(size, -9.0, dtype=np.float32),
    )


if __name__ == "__main__":
    raise SystemExit(main())
