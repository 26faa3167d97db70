"""Weights out: a Hugging Face directory for engines and for people, with where it came from.

From:  a trainer (a new version), or a version's directory (`manage.py export`).
To:    engines load it; `save_version` and `export_version` write it.
Holds: `lm_head.weight` is always there: an engine that reloads a file without it keeps its stale output matrix and
       says nothing (tied embeddings); safetensors only; complete or absent.
"""

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from training.checkpoints import write_directory
from training.engine_weights import probe_ids
from training.master_weights import whole
from training.models import Attempt, Version
from training.packing import build_micro_batch
from training.selection import Sample
from training.trainer import Trainer
from training.trainer_group import led

COMPANIONS = (
    "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "chat_template*", "generation_config.json",
    "added_tokens.json", "spiece.model", "preprocessor_config.json",
)  # fmt: skip


CPU = torch.device("cpu")


@led
def save_version(
    trainer: Trainer, path: Path, *, source: str, provenance: dict[str, Any], precision: str = "bf16"
) -> int:
    """Write the trainer's weights. source: the base model, whose tokenizer files go along. returns bytes."""

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    state, probe = hugging_face_state(trainer, dtype), probe_logprobs(trainer)
    if not trainer.leads:  # all ranks gather, one writes
        return 0

    def write(directory: Path) -> None:
        trainer.language_model.core.config.save_pretrained(directory)
        save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
        set_dtype(directory / "config.json", "float32" if precision == "fp32" else "bfloat16")
        copy_companions(source, directory)
        named = {**provenance, "probe_logprobs": probe}
        (directory / "gyre.json").write_text(json.dumps(named, indent=1, default=str))

    return write_directory(path, write)


@torch.no_grad()
def probe_logprobs(trainer: Trainer) -> list[float]:
    """What the trainer gives each id of the probe after the first, temperature 1: an engine that was given these weights
    is held against it (`RunningEngine.publish`)."""
    ids = np.asarray(probe_ids(trainer.language_model.core.config.get_text_config().vocab_size), dtype=np.int64)
    mask = np.arange(len(ids)) > 0
    sample = Sample(
        rollout_id=UUID(int=0), pieces=(), ids=ids, loss_mask=mask,
        behaviour_logprobs=np.full(len(ids), np.nan, dtype=np.float32),
    )  # fmt: skip
    batch = build_micro_batch([sample], [0], multiple_of=1)
    logprobs_M, _ = trainer.language_model.token_logprobs(batch, temperature=1.0)
    return [round(value, 5) for value in logprobs_M.tolist()]


def hugging_face_state(trainer: Trainer, dtype: torch.dtype, device: torch.device = CPU) -> dict[str, Tensor]:
    """Every tensor by its Hugging Face name, an adapter merged, the output matrix written even where it is tied."""
    module = trainer.language_model.module
    state = {name: whole(tensor) for name, tensor in module.state_dict().items()} | trainer.masters.state()
    core = trainer.language_model.core
    head = core.get_output_embeddings().weight
    names = [name for name, parameter in module.named_parameters(remove_duplicate=False) if parameter is head]
    output = state[next((name for name in names if name in trainer.masters.masters), names[0])]
    if hasattr(module, "get_base_model"):
        state = merged_state(module, state)
    state["lm_head.weight"] = output
    return {name: as_file_tensor(tensor, dtype, device) for name, tensor in state.items()}


def as_file_tensor(tensor: Tensor, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """A copy of its own: safetensors refuses tensors that share memory."""
    return tensor.detach().to(device, dtype).clone(memory_format=torch.contiguous_format)


def merged_state(module: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LoRA: base + B A scaled, under the base model's names."""
    merged = {}
    for name, tensor in state.items():
        if "lora_" in name:
            continue
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        if ".base_layer." in name:
            stem = name.split(".base_layer.")[0]
            low, high = state.get(f"{stem}.lora_A.default.weight"), state.get(f"{stem}.lora_B.default.weight")
            if low is not None and high is not None and name.endswith("weight"):
                scaling = module.get_submodule(stem).scaling["default"]
                tensor = tensor.float() + (high.float() @ low.float()) * scaling
        merged[plain] = tensor
    return merged


def set_dtype(path: Path, name: str) -> None:
    config = json.loads(path.read_text())
    config.pop("quantization_config", None)
    config.pop("torch_dtype", None)
    config["dtype"] = name
    path.write_text(json.dumps(config, indent=2))


def copy_companions(source: str, directory: Path) -> None:
    """Tokenizer files beside the weights. From a hub name they are loaded and saved, which is the same files."""
    folder = Path(source)
    if not folder.is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source).save_pretrained(directory)
        return
    for pattern in COMPANIONS:
        for file in folder.glob(pattern):
            shutil.copy(file, directory / file.name)


class ExportError(Exception):
    """Boundary: storage. What is missing, and what to do."""


def find_version(name: str) -> Version:
    """name: <run name>/<attempt number>/<version number>; a run's name may contain slashes."""
    parts = name.rsplit("/", 2)
    if len(parts) != 3 or not parts[1].isdigit() or not parts[2].lstrip("-").isdigit():
        raise ExportError(f"{name!r} does not name a version; write RUN/ATTEMPT/VERSION, for example demo/1/9")
    run, attempt, number = parts[0], int(parts[1]), int(parts[2])
    version = Version.objects.filter(attempt__run__name=run, attempt__number=attempt, number=number).first()
    if version is None:
        known = Version.objects.filter(attempt__run__name=run, attempt__number=attempt).exclude(path="")
        numbers = ", ".join(str(each.number) for each in known) or "none"
        raise ExportError(
            f"there is no version {number} in attempt {attempt} of run {run!r}; versions on disk: {numbers}"
        )
    if not version.path or not Path(version.path).is_dir():
        raise ExportError(f"version {name} was removed by retention; pin a version to keep it")
    return version


def export_version(version: Version, destination: Path) -> int:
    """Copy a version, complete or not at all. returns bytes."""
    if destination.exists() and any(destination.iterdir()):
        raise ExportError(f"{destination} is not empty; name a new directory")

    def write(directory: Path) -> None:
        shutil.copytree(version.path, directory, dirs_exist_ok=True)
        (directory / "gyre.json").write_text(json.dumps(version_provenance(version), indent=1, default=str))

    return write_directory(destination, write)


def version_provenance(version: Version) -> dict[str, Any]:
    return {**build_provenance_of(version.attempt), "version": version.number, "step": version.step,
            "published_at": version.published_at, "evaluation": version.evaluation}  # fmt: skip


def build_provenance_of(attempt: Attempt) -> dict[str, Any]:
    return {
        "made_by": "gyre",
        "run": attempt.run.name,
        "attempt": attempt.number,
        "attempt_id": str(attempt.id),
        "model": attempt.config.get("model", {}),
        "config": attempt.config,
        "software": attempt.provenance,
    }
