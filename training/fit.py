"""What a cell's devices must hold to train and serve a model, computed before anything is started.

From:  a model's config (no weights are read), the context, and how it is trained.
To:    `manage.py fit`: bytes by part for one device, and which cards hold them.
Holds: parameters are counted on the model itself, and what the backward pass keeps is traced through its own layers,
       both on torch's meta device, which computes shapes and no numbers; nothing is guessed from a family's name.
Never: reserves memory, needs a GPU.

Not yet compared with the resident memory of real trainer processes.
"""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from training.attention import ATTENTION
from training.causal_lm import add_adapter, supports_segments
from training.logprobs import CHUNK_TOKENS
from training.parallel import Division

TRACED_TOKENS = 256
CARDS = {"H200": 141e9, "H100": 80e9, "A100 80 GB": 80e9, "A100 40 GB": 40e9, "24 GB card": 24e9}
USABLE = 0.92
"""Of a card: the rest goes to the driver's context, fragments and collectives' buffers."""
RUNTIME_BYTES = 0.6e9
"""Libraries and the CUDA context or, on CPU, the interpreter with torch and transformers."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How one cell trains and serves. tokens: of one micro-batch; at least a whole sample, so the context.
    running: sequences whose keys and values the engine holds at once, at full context."""

    context: int
    tokens: int
    precision: Literal["fp32", "bf16"] = "bf16"
    lora_rank: int = 0
    activations: Literal["keep", "checkpoint", "offload"] = "checkpoint"
    devices: int = 1
    division: Division = "context"
    running: int = 8
    kv_bytes: int = 2


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the model itself says. layer: of the largest decoder layer; saved_*: bytes that the backward pass keeps
    for each token, of one layer and outside of the layers."""

    parameters: int
    trainable: int
    layers: int
    layer: int
    hidden: int
    vocabulary: int
    kv_width: int
    intermediate: int
    saved_layer: float
    saved_outside: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Bytes on one device of the cell."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    output: float
    gathered: float
    runtime: float
    engine_weights: float
    engine_cache: float

    @property
    def trainer(self) -> float:
        return sum(
            (self.weights, self.gradients, self.optimizer, self.activations, self.output, self.gathered, self.runtime)
        )

    @property
    def engine(self) -> float:
        return self.engine_weights + self.engine_cache + self.runtime

    def fits(self) -> dict[str, dict[str, bool]]:
        """A cell serves or trains, one at a time; `together` is for devices whose engine cannot sleep."""
        return {
            card: {
                "trainer": self.trainer <= USABLE * size,
                "engine": self.engine <= USABLE * size,
                "together": self.trainer + self.engine <= USABLE * size,
            }
            for card, size in CARDS.items()
        }

    def report(self) -> dict[str, Any]:
        parts = {name: int(value) for name, value in asdict(self).items()}
        return parts | {"trainer": int(self.trainer), "engine": int(self.engine), "cards": self.fits()}


def fit_model(path: Path | str, setup: Setup) -> tuple[Shape, Fit]:
    shape = read_shape(path, setup)
    return shape, fit(shape, setup)


def fit(shape: Shape, setup: Setup) -> Fit:
    """Every device holds its shard of weights, gradients and moments, one layer and the outer weights unsharded, and
    the activations of its micro-batch (`data`) or of its share of the rows (`context`)."""
    shards = setup.devices
    rows = setup.tokens / shards if setup.division == "context" else setup.tokens
    compute = 2 if setup.precision == "bf16" else 4
    frozen = shape.parameters - shape.trainable
    copies = compute if setup.precision == "bf16" and shards == 1 else 0  # sharded: only what is gathered is rounded
    outside = shape.parameters - shape.layer * shape.layers
    keys = 2 * shape.kv_width * compute * (setup.tokens - rows)  # of the other ranks, for each layer that is held
    held = shape.layers if setup.activations == "keep" else 1
    inputs = 0 if setup.activations == "keep" else shape.layers * shape.hidden * compute
    if setup.activations == "offload":
        inputs = 0
    saved = held * shape.saved_layer + shape.saved_outside + inputs
    transient = 3 * shape.intermediate * compute  # gradients inside the layer whose backward pass runs
    head = shape.vocabulary * shape.hidden
    return Fit(
        weights=(shape.trainable * (4 + copies) + frozen * (compute if shards == 1 else 4)) / shards,
        gradients=shape.trainable * 4 / shards,
        optimizer=shape.trainable * 8 / shards,
        activations=rows * (saved + transient) + held * keys,
        output=3 * CHUNK_TOKENS * shape.vocabulary * 4 + (2 * head * 4 if setup.lora_rank == 0 else 0),
        gathered=0 if shards == 1 else (2 * shape.layer + outside) * compute,
        runtime=RUNTIME_BYTES,
        engine_weights=shape.parameters * 2 / shards,
        engine_cache=2 * shape.layers * shape.kv_width * setup.kv_bytes * setup.context * setup.running / shards,
    )


def read_shape(path: Path | str, setup: Setup) -> Shape:
    """Counted and traced on the meta device."""
    config = AutoConfig.from_pretrained(str(path))
    text = config.get_text_config()
    whole = build_meta(config, setup)
    counts = [(p.numel(), p.requires_grad) for p in whole.parameters()]
    core = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    layers = core.base_model.layers
    one, two = (traced_bytes(config, setup, num_layers) for num_layers in (1, 2))
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        parameters=sum(size for size, _ in counts),
        trainable=sum(size for size, needed in counts if needed),
        layers=len(layers),
        layer=max(sum(p.numel() for p in layer.parameters()) for layer in layers),
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        kv_width=head_size * (getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        saved_layer=(two - one) / TRACED_TOKENS,
        saved_outside=max(2 * one - two, 0.0) / TRACED_TOKENS,
    )


def build_meta(config: Any, setup: Setup, num_layers: int | None = None) -> Any:
    """The model without memory, with its adapter."""
    config = copy.deepcopy(config)
    if num_layers is not None:
        text = config.get_text_config()
        text.num_hidden_layers = num_layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:num_layers]
    with torch.device("meta"):
        module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        if supports_segments(module):
            module.set_attn_implementation(ATTENTION)
        if setup.lora_rank:
            module = add_adapter(module, rank=setup.lora_rank)
    if setup.precision == "bf16":
        for parameter in module.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return module


def traced_bytes(config: Any, setup: Setup, num_layers: int) -> float:
    """What a forward pass of TRACED_TOKENS keeps, parameters left out."""
    module = build_meta(config, setup, num_layers)
    core = module.get_base_model() if hasattr(module, "get_base_model") else module
    own = {p.untyped_storage()._cdata for p in module.parameters()}
    with saved_storages(own) as storages:
        core.base_model(
            input_ids=torch.zeros(1, TRACED_TOKENS, dtype=torch.int64, device="meta"),
            attention_mask=torch.ones(1, 1, TRACED_TOKENS, TRACED_TOKENS, dtype=torch.bool, device="meta"),
            use_cache=False,  # a mask of four dimensions is taken as it is; without one its values would be looked at
        )
        return float(sum(storages.values()))


@contextlib.contextmanager
def saved_storages(ignore: set[int]) -> Iterator[dict[int, int]]:
    """Storage -> bytes of all that autograd keeps meanwhile."""
    found: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage._cdata not in ignore:
            found[storage._cdata] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield found
