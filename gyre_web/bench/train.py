"""`bench train`: shared prefixes once against samples one by one, against TRL's GRPO, and memory against length.

From:  trees of the documented generator (gyre_web.bench._trees), a model made from a seed.
To:    flat_tokens, distinct_tokens, computed_tokens, speedup, trl_ratio, memory_slope_r2, and every round's seconds.
Holds: the three contenders take turns round by round in processes that stay loaded, with one number of threads and
       one allocator and OpenMP environment; ratios are medians over rounds, because machines are noisy.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from django.conf import settings

from gyre_web.bench import _trl
from gyre_web.bench._trees import TreeSizes, make_group
from training.layout import distinct_tokens
from training.memory import trainer_environment, usable_cores
from training.speed_check import save_rollouts
from training.trainer import TrainRollout

TARGET_SHARE, TARGET_SPEEDUP, TARGET_TRL, TARGET_R2 = 0.7, 3.0, 1.3, 0.99


@dataclass(frozen=True, kw_only=True)
class Plan:
    """precision: of both contenders. trl_batches: samples a forward pass of TRL's, each tried once; the fastest counts."""

    trees: TreeSizes
    hidden: int
    layers: int
    vocabulary: int
    rounds: int
    precisions: tuple[str, ...]
    trl_batches: tuple[int, ...]
    lengths: tuple[int, ...]


QUICK = Plan(
    trees=TreeSizes(rollouts=3, prompt=600, turns=6), hidden=256, layers=3, vocabulary=2048, rounds=2,
    precisions=("fp32",), trl_batches=(5,), lengths=(1024, 2048, 4096),
)  # fmt: skip
FULL = Plan(
    trees=TreeSizes(rollouts=6, prompt=1200, turns=10), hidden=384, layers=6, vocabulary=16384, rounds=5,
    precisions=("fp32", "bf16"), trl_batches=(1, 2, 5, 10), lengths=(1024, 2048, 4096, 8192, 16384, 32768, 65536),
)  # fmt: skip


def run(*, quick: bool) -> dict[str, Any]:
    plan = QUICK if quick else FULL
    directory = Path(tempfile.mkdtemp(prefix="gyre-bench-train-"))
    try:
        model = save_model(directory / "model", plan)
        rollouts = make_group(plan.trees, vocabulary=plan.vocabulary, seed=1)
        samples = directory / "samples.npz"
        save_rollouts(rollouts, samples)
        found = {"name": "train", **count_tokens(rollouts), "threads": usable_cores()}
        found |= measure_speed(model, samples, plan)
        found |= measure_memory(directory, plan)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return judge(found)


def judge(found: dict[str, Any]) -> dict[str, Any]:
    """`ok` from the raw figures alone. A skipped TRL is not ok."""
    possible = found["flat_tokens"] / found["distinct_tokens"]
    checks = {
        "each_token_once": found["computed_tokens"] == found["distinct_tokens"],
        "speedup": found["speedup"] >= max(TARGET_SHARE * possible, TARGET_SPEEDUP),
        "trl": isinstance(found["trl_ratio"], float) and found["trl_ratio"] >= TARGET_TRL,
        "memory": found["memory_slope_r2"] >= TARGET_R2,
    }
    return found | {"possible_speedup": possible, "checks": checks, "ok": all(checks.values())}


def count_tokens(rollouts: Sequence[TrainRollout]) -> dict[str, Any]:
    samples = [sample for rollout in rollouts for sample in rollout.samples]
    return {
        "rollouts": len(rollouts),
        "samples": len(samples),
        "flat_tokens": sum(sample.num_tokens for sample in samples),
        "distinct_tokens": distinct_tokens([sample.ids for sample in samples]),
        "trained_tokens": sum(sample.num_trained for sample in samples),
    }


def save_model(path: Path, plan: Plan, *, seed: int = 0) -> Path:
    """A Llama of random weights with a tied output matrix."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=plan.vocabulary,
        hidden_size=plan.hidden,
        intermediate_size=plan.hidden * 8 // 3 // 64 * 64,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.hidden // 64,
        num_key_value_heads=max(plan.hidden // 128, 1),
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)  # type: ignore[no-untyped-call]
    return path


class Contender:
    """A process that does one step for each line it is sent."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            list(command), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("wb"),
            text=True, cwd=settings.BASE_DIR,
        )  # fmt: skip
        self._answer()

    def step(self, word: str = "go") -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        """The next line that is ours: libraries print too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"'):
                return dict(json.loads(line))
        raise RuntimeError(f"{' '.join(self.process.args)} ended:\n{self.log.read_text(errors='replace')[-1500:]}")  # type: ignore[arg-type]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def our_environment() -> dict[str, str]:
    return trainer_environment(os.environ, cores=usable_cores())


def start_ours(model: Path, samples: Path, directory: Path, precision: str) -> Contender:
    command = [sys.executable, "-m", "training.speed_check", str(model), str(samples), "--precision", precision]
    return Contender(command, our_environment(), directory / "ours.log")


def start_trl(python: Path, model: Path, samples: Path, batch: int, precision: str) -> Contender:
    script = Path(__file__).with_name("_trl_steps.py")
    command = [str(python), str(script), str(model), str(samples), str(batch), precision]
    return Contender(command, trainer_environment(_trl.environment(), cores=usable_cores()), model.parent / "trl.log")


def measure_speed(model: Path, samples: Path, plan: Plan) -> dict[str, Any]:
    """Rounds of (tree, flat, TRL) in each precision; the ratios are those of each side's fastest precision."""
    rounds: dict[str, dict[str, list[float]]] = {}
    computed = 0.0
    try:
        python, skipped = _trl.trl_python(), ""
    except _trl.TrlMissing as missing:
        python, skipped = None, f"skipped: {missing}"
        sys.stderr.write(f"PEER trl {skipped}\n")
    chosen: dict[str, int] = {}
    for precision in plan.precisions:
        ours = start_ours(model, samples, model.parent, precision)
        trl = None
        try:
            if python is not None:
                trl, chosen[precision] = fastest_trl(python, model, samples, precision, plan)
            seconds: dict[str, list[float]] = {"tree": [], "flat": [], "trl": []}
            for number in range(plan.rounds + 1):  # the first warms up
                answers = {"tree": ours.step("tree"), "flat": ours.step("flat")} | ({"trl": trl.step()} if trl else {})
                computed = answers["tree"]["computed_tokens"]
                if number:
                    for name, answer in answers.items():
                        seconds[name].append(answer["seconds"])
            rounds[precision] = seconds
        finally:
            ours.stop()
            if trl:
                trl.stop()
    return (
        ratios(rounds)
        | {
            "computed_tokens": int(computed),
            "seconds": rounds,
            "trl_settings": trl_settings(chosen) if chosen else skipped,
        }
        | ({} if python else {"trl_ratio": skipped})
    )


def fastest_trl(python: Path, model: Path, samples: Path, precision: str, plan: Plan) -> tuple[Contender, int]:
    """TRL with the number of samples a pass that gave the fastest second step."""
    best: tuple[float, int] | None = None
    count = len(np.load(samples)["length"])
    for batch in plan.trl_batches:
        if count % batch:
            continue
        contender = start_trl(python, model, samples, batch, precision)
        try:
            contender.step()
            seconds = contender.step()["seconds"]
        finally:
            contender.stop()
        if best is None or seconds < best[0]:
            best = (seconds, batch)
    assert best is not None
    return start_trl(python, model, samples, best[1], precision), best[1]


def trl_settings(chosen: dict[str, int]) -> str:
    each = ", ".join(f"{precision}: {batch} samples a pass" for precision, batch in chosen.items())
    return f"{_trl.requirement()}, GRPOTrainer, loss_type dapo, beta 0, sdpa, no checkpointing, fused head; {each}"


def ratios(rounds: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Medians of ratios round by round: of our flat and tree steps in their fastest precision, and against TRL in its."""

    def fastest(name: str) -> list[float]:
        return min((seconds[name] for seconds in rounds.values() if seconds[name]), key=statistics.median, default=[])

    tree, flat, trl = fastest("tree"), fastest("flat"), fastest("trl")
    found: dict[str, Any] = {"speedup": median_ratio(flat, tree)}
    if trl:
        found |= {"trl_ratio": median_ratio(trl, flat), "trl_ratio_tree": median_ratio(trl, tree)}
    return found


def median_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


MEMORY_PLAN = Plan(
    trees=TreeSizes(rollouts=1, prompt=1, turns=1), hidden=128, layers=2, vocabulary=512, rounds=1, precisions=(),
    trl_batches=(), lengths=(),
)  # fmt: skip


def measure_memory(directory: Path, plan: Plan) -> dict[str, Any]:
    """Most resident bytes of a trainer process over one sample of growing length, whose last tenth is trained."""
    model = save_model(directory / "tiny", MEMORY_PLAN)
    peaks = []
    for length in plan.lengths:
        samples = directory / f"long-{length}.npz"
        save_one(samples, length)
        ours = start_ours(model, samples, directory, "fp32")
        try:
            peaks.append(ours.step("tree")["peak_bytes"])
        finally:
            ours.stop()
    slope, intercept, r2 = fit_line(plan.lengths, peaks)
    return {
        "memory_slope_r2": r2,
        "memory_bytes_per_token": slope,
        "memory_base_bytes": intercept,
        "memory_lengths": list(plan.lengths),
        "memory_peaks": peaks,
    }


def save_one(path: Path, length: int) -> None:
    ids = np.random.default_rng(length).integers(1, 512, length)
    np.savez(
        path, ids=ids, mask=np.arange(length) >= length * 0.9, logprobs=np.full(length, -6.2, dtype=np.float32),
        length=np.array([length]), owner=np.array([0]), advantage=np.array([1.0]),
    )  # fmt: skip


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and R squared of the straight line."""
    slope, intercept = statistics.linear_regression(x, y)
    mean = statistics.fmean(y)
    left = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y, strict=True))
    return slope, intercept, 1 - left / sum((b - mean) ** 2 for b in y)
