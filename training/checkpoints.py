"""Where an attempt's files are, and checkpoints: weights, moments, random state and counters, all or nothing.

From:  training.trainer_process at a step's end.
To:    <DATA_DIR>/attempts/<attempt>/{checkpoints,versions}/; a restarted trainer goes on as if never interrupted.
Holds: a directory under its final name is complete and on disk: written as `.part`, synced, renamed, parent synced.
"""

import errno
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
from django.conf import settings
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from training.master_weights import like, whole
from training.trainer import Trainer, TrainerError
from training.trainer_group import led

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_WORDS = re.compile(f"os error ({'|'.join(map(str, FULL))})")
FILES = ("masters.safetensors", "moments.safetensors", "rng.pt", "state.json")


class StorageFull(Exception):
    """Boundary: storage. Nothing was left half written; the same write can be tried again once there is room."""


class CheckpointError(TrainerError):
    """Boundary: storage. A checkpoint cannot be loaded: which file, what is wrong, what to do."""


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
    def references(self) -> Path:
        """Reference logprobs of a preference run's rollouts."""
        return self.root / "references.json"

    @property
    def lock(self) -> Path:
        return self.root / "trainer.lock"


def write_directory(path: Path, write: Callable[[Path], None]) -> int:
    """Let `write` fill a directory that appears under its name only when all of it is on disk. returns its bytes.

    A directory of that name that is there already belongs to a try that died before its rows were written: replaced.
    Raises StorageFull where there is no room; then nothing of the try is left.
    """
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        write(part)
        size = 0
        for file in sorted(part.rglob("*")):
            if file.is_file():
                size += file.stat().st_size
                sync(file)
        sync(part)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        if is_full(error):
            raise StorageFull(f"there is no room for {path}: {error}") from error
        raise
    shutil.rmtree(path, ignore_errors=True)
    part.rename(path)
    sync(path.parent)
    return size


def is_full(error: Exception) -> bool:
    """No space, no quota, or a file size limit. safetensors says it in words."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return bool(FULL_WORDS.search(str(error)))


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@led
def save_checkpoint(trainer: Trainer, path: Path, *, counters: dict[str, Any]) -> int:
    """returns bytes written. counters: plain JSON, given back by load_checkpoint."""

    masters = {name: tensor.contiguous() for name, tensor in trainer.masters.state().items()}
    moments, steps = gather_moments(trainer)
    if not trainer.leads:  # all ranks gather, one writes
        trainer.wait()
        return 0

    def write(directory: Path) -> None:
        save_file(masters, directory / "masters.safetensors")
        save_file(moments, directory / "moments.safetensors")
        rng = io.BytesIO()
        torch.save(torch.get_rng_state(), rng)  # through memory: torch says nothing useful about a full disk
        (directory / "rng.pt").write_bytes(rng.getvalue())
        text = {"counters": counters, "steps": steps, "python_rng": random.getstate(), "shape": shape_of(trainer)}
        (directory / "state.json").write_text(json.dumps(text))

    size = write_directory(path, write)
    trainer.wait()
    return size


def gather_moments(trainer: Trainer) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """AdamW's two moments, whole, under `<name>|exp_avg` and `<name>|exp_avg_sq`; its step counts by name."""
    moments, steps = {}, {}
    names = list(trainer.masters.masters)
    for place, entry in trainer.optimizer.state_dict()["state"].items():
        for key in ("exp_avg", "exp_avg_sq"):
            moments[f"{names[place]}|{key}"] = whole(entry[key])
        steps[names[place]] = float(entry["step"])
    return moments, steps


@led
def load_checkpoint(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Put the trainer where it was. returns the counters. Raises CheckpointError; the trainer is then as before."""
    masters, moments, text = read_checkpoint(path)
    check_shape(path, text.get("shape"), shape_of(trainer))
    trainer.masters.load(masters)
    trainer.reset_optimizer()
    for name, master in trainer.masters.masters.items():
        if name in text["steps"]:
            trainer.optimizer.state[master] = {
                "step": torch.tensor(text["steps"][name], dtype=torch.float32),
                "exp_avg": like(moments[f"{name}|exp_avg"].to(master.device), master),
                "exp_avg_sq": like(moments[f"{name}|exp_avg_sq"].to(master.device), master),
            }
    torch.set_rng_state(torch.load(path / "rng.pt", weights_only=True))
    version, state, gauss = text["python_rng"]
    random.setstate((version, tuple(state), gauss))
    return dict(text["counters"])


def shape_of(trainer: Trainer) -> dict[str, Any]:
    """What a checkpoint must share with the trainer that loads it."""
    return {
        "adapter": trainer.settings.adapter,
        "lora_rank": trainer.settings.lora_rank if trainer.settings.adapter == "lora" else None,
        "weights": {name: list(master.shape) for name, master in trainer.masters.masters.items()},
    }


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(masters, moments, state), all of it or CheckpointError."""
    missing = [name for name in FILES if not (path / name).is_file()]
    remedy = "Put it back from a copy, or start a new run whose model.start_from is a published version."
    if missing:
        raise CheckpointError(f"the checkpoint {path} lacks {' and '.join(missing)}. {remedy}")
    try:
        masters, moments = load_file(path / "masters.safetensors"), load_file(path / "moments.safetensors")
        return masters, moments, json.loads((path / "state.json").read_text())
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged ({error}). {remedy}") from error


def check_shape(path: Path, saved: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    """Refuse a checkpoint of another model, adapter or rank, and say what differs."""
    if saved is None or saved == wanted:
        return
    faults = [
        f"{name} is {saved.get(name)!r} there and {wanted[name]!r} here"
        for name in ("adapter", "lora_rank")
        if saved.get(name) != wanted[name]
    ]
    there, here = saved.get("weights", {}), wanted["weights"]
    odd = [name for name in {*there, *here} if there.get(name) != here.get(name)]
    if odd:
        first = sorted(odd)[0]
        faults.append(
            f"{len(odd)} weights differ, first {first}: {there.get(first, 'absent')} there, {here.get(first, 'absent')} here"
        )
    raise CheckpointError(
        f"the checkpoint {path} was written with another config: {'; '.join(faults)}. Restore model and adapter, or "
        "start a new run whose model.start_from is a published version."
    )


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
