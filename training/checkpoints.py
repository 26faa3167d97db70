"""Where an attempt's files are, and checkpoints: weights, moments, random state and counters, all or nothing.

From:  training.trainer_process at a step's end.
To:    <DATA_DIR>/attempts/<attempt>/{checkpoints,versions}/; a restarted trainer goes on as if never interrupted.
Holds: a directory under its final name is complete and on disk: written as `.part`, synced, renamed, parent synced.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
from django.conf import settings
from safetensors.torch import load_file, save_file

from training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class AttemptFiles:
    """Directories of one attempt."""

    root: Path

    @classmethod
    def of(cls, attempt_id: UUID) -> "AttemptFiles":
        return cls(root=Path(settings.DATA_DIR) / "attempts" / str(attempt_id))

    def checkpoint(self, step: int) -> Path:
        return self.root / "checkpoints" / f"step-{step:06d}"

    def warm_checkpoint(self, step: int) -> Path:
        """Within the warm start, which has no rows: the directory's name is its commit."""
        return self.root / "checkpoints" / f"warm-{step:06d}"

    def warm_checkpoints(self) -> list[Path]:
        """Complete ones, oldest first."""
        return sorted(path for path in self.root.glob("checkpoints/warm-*") if path.suffix != ".part")

    def version(self, number: int) -> Path:
        return self.root / "versions" / f"{number:06d}"

    @property
    def lock(self) -> Path:
        return self.root / "trainer.lock"


def write_directory(path: Path, write: Callable[[Path], None]) -> int:
    """Let `write` fill a directory that appears under its name only when all of it is on disk. returns its bytes.

    A directory of that name that is there already belongs to a try that died before its rows were written: replaced.
    """
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write(part)
    size = 0
    for file in sorted(part.rglob("*")):
        if file.is_file():
            size += file.stat().st_size
            sync(file)
    sync(part)
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    sync(path.parent)
    return size


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_checkpoint(trainer: Trainer, path: Path, *, counters: dict[str, Any]) -> int:
    """returns bytes written. counters: plain JSON, given back by load_checkpoint."""

    def write(directory: Path) -> None:
        names = list(trainer.masters.masters)
        save_file(
            {name: tensor.contiguous() for name, tensor in trainer.masters.state().items()},
            directory / "masters.safetensors",
        )
        moments, steps = {}, {}
        for place, entry in trainer.optimizer.state_dict()["state"].items():
            moments[f"{names[place]}|exp_avg"] = entry["exp_avg"]
            moments[f"{names[place]}|exp_avg_sq"] = entry["exp_avg_sq"]
            steps[names[place]] = float(entry["step"])
        save_file(moments, directory / "moments.safetensors")
        torch.save(torch.get_rng_state(), directory / "rng.pt")
        text = {"counters": counters, "steps": steps, "python_rng": random.getstate()}
        (directory / "state.json").write_text(json.dumps(text))

    return write_directory(path, write)


def load_checkpoint(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Put the trainer where it was. returns the counters."""
    trainer.masters.load(load_file(path / "masters.safetensors"))
    text = json.loads((path / "state.json").read_text())
    moments = load_file(path / "moments.safetensors")
    trainer.reset_optimizer()
    for name, master in trainer.masters.masters.items():
        if name in text["steps"]:
            trainer.optimizer.state[master] = {
                "step": torch.tensor(text["steps"][name], dtype=torch.float32),
                "exp_avg": moments[f"{name}|exp_avg"].to(master.device),
                "exp_avg_sq": moments[f"{name}|exp_avg_sq"].to(master.device),
            }
    torch.set_rng_state(torch.load(path / "rng.pt", weights_only=True))
    version, state, gauss = text["python_rng"]
    random.setstate((version, tuple(state), gauss))
    return dict(text["counters"])


def remove_directories(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def orphaned(directory: Path, keep: Iterable[Path]) -> list[Path]:
    """Directories below that no row names: left by a process that died before its transaction."""
    kept = {path.resolve() for path in keep}
    return [path for path in directory.glob("*") if path.resolve() not in kept] if directory.exists() else []


def versions_to_remove(numbers: Iterable[int], *, keep_last: int, pinned: Iterable[int]) -> list[int]:
    """Retention: the last n and pinned ones stay; version 0, where the online phase began, stays too."""
    ordered = sorted(numbers)
    kept = {0, *ordered[-keep_last:], *pinned}
    return [number for number in ordered if number not in kept]
