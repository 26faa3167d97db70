"""Does an engine have the weights it claims? What is looked at before and after an exchange.

From:  training.engines.publish; training.export writes what read_reference finds.
To:    EngineError where a directory would be half loaded in silence; logprobs to compare.
Never: loads tensors.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from training.engine_client import EngineError

PROBE_LENGTH = 48
TOLERANCE = {"float32": 2e-4, "bfloat16": 0.15}
"""Largest mean difference between the trainer's logprobs of the probe and the engine's.

The probe's tokens are improbable (logprobs about -14, logits to 34), where bfloat16 rounds by 0.1: SmolLM2-135M's engine and
trainer differ by 0.06 with the same weights, and one demo step moves them by 0.03 to 0.05. So in bfloat16 this finds other
weights, damaged ones, and a part that stayed behind for several steps; an exchange that changed nothing at all is found
by equality. In float32 a head that is one step stale (1e-2) is found.
"""


def probe_ids(vocabulary_size: int) -> list[int]:
    """The prompt of the probe: spread over the vocabulary, the same everywhere."""
    return [(101 + 7919 * n) % vocabulary_size for n in range(PROBE_LENGTH)]


def read_vocabulary_size(directory: Path) -> int:
    config = json.loads((directory / "config.json").read_text())
    return int((config.get("text_config") or config)["vocab_size"])


def check_weights(directory: Path) -> None:
    """Refuse what an engine would half load in silence."""
    names = [name for file in sorted(directory.glob("*.safetensors")) for name in tensor_names(file)]
    if not names:
        raise EngineError(f"{directory} has no *.safetensors; the engine keeps its weights.")
    if "lm_head.weight" not in names:
        raise EngineError(
            f"{directory} has no lm_head.weight: an engine would keep a stale head and answer success. "
            "Write it, also where embeddings are tied."
        )


def read_reference(directory: Path) -> list[float] | None:
    """What the trainer computed for the probe when it wrote these weights."""
    try:
        found = json.loads((directory / "gyre.json").read_text()).get("probe_logprobs")
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, list) else None


def tensor_names(file: Path) -> list[str]:
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


def digest_files(directory: Path) -> list[tuple[str, int, bytes]]:
    """Cheap: name, size and a sample of each file's bytes from many places; equal for copies of the same weights."""
    out = []
    for file in sorted(directory.glob("*.safetensors")):
        size = file.stat().st_size
        with file.open("rb") as stream:
            pieces = []
            for part in range(256):
                stream.seek(part * size // 256)
                pieces.append(stream.read(64))
        out.append((file.name, size, b"".join(pieces)))
    return out


def mean_difference(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) != len(b) or not a:
        return float("inf")
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)
