"""A Hugging Face causal LM as the trainer needs it: micro-batch in, logprobs and entropies of its trained tokens out.

From:  a directory or hub name.
To:    training.trainer (passes), training.export (weights under the names that Hugging Face and vLLM know).
Holds: a model whose output is not plain `hidden @ weight'` is refused when it is loaded, not trained wrongly.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from training.attention import ATTENTION
from training.config import Optimization
from training.logprobs import token_logprobs
from training.master_weights import round_parameters
from training.packing import MicroBatch, Packing
from training.parallel import Ranks, Share, shard, share_of

REFUSED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Config fields of models that change logits after the output matrix."""


class ModelUnsupported(Exception):
    """Boundary: trainer. The model cannot be trained exactly; another model is needed."""


class Passes(nn.Module):
    """The model and its output matrix as one module, so that sharding sees one forward pass.

    segments: whether attention runs over the packed row, or the samples are padded into rows (models with sliding
    windows, recurrent layers or an attention of their own). offload: keep what the backward pass needs off the device.
    """

    def __init__(self, core: Any, *, segments: bool, ranks: Ranks | None = None, offload: bool = False) -> None:
        super().__init__()
        self.core = core
        self.segments = segments
        self.ranks = ranks
        self.offload = offload

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """logprobs_M and entropies_M in float32, or float64 for a model in it."""
        weight_VH = self.core.get_output_embeddings().weight
        device = weight_VH.device
        if not self.segments:
            hidden_TH = self._padded_hidden(batch, device)
            hidden_MH = hidden_TH[batch.predict_M.to(device)]
            return token_logprobs(
                hidden_MH.to(weight_VH.dtype), weight_VH, batch.targets_M.to(device), temperature=temperature
            )
        share = share_of(batch, self.ranks)
        hidden_TH = self._packed_hidden(share, device)
        hidden_MH = hidden_TH[share.predict_M.to(device)].to(weight_VH.dtype)
        found = token_logprobs(hidden_MH, weight_VH, share.targets_M.to(device), temperature=temperature)
        return share.whole(found[0]), share.whole(found[1])

    def _packed_hidden(self, share: Share, device: torch.device) -> Tensor:
        saved = torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda")
        with saved if self.offload else contextlib.nullcontext():
            outputs = self.core.base_model(
                input_ids=share.ids_T[None].to(device),
                position_ids=share.positions_T[None].to(device),
                use_cache=False,
                rows=share.rows,
            )
        hidden_TH: Tensor = outputs.last_hidden_state[0]
        return hidden_TH

    def _padded_hidden(self, batch: MicroBatch, device: torch.device) -> Tensor:
        """Samples as rows padded at the right, and back into one row."""
        lengths = batch.lengths
        width = -(-max(lengths) // 64) * 64
        ids_BL = torch.zeros(len(lengths), width, dtype=torch.int64)
        mask_BL = torch.zeros(len(lengths), width, dtype=torch.int64)
        start = 0
        for row, length in enumerate(lengths):
            ids_BL[row, :length] = batch.ids_T[start : start + length]
            mask_BL[row, :length] = 1
            start += length
        outputs = self.core.base_model(input_ids=ids_BL.to(device), attention_mask=mask_BL.to(device), use_cache=False)
        hidden_TH: Tensor = outputs.last_hidden_state[mask_BL.bool().to(device)]
        return hidden_TH


@dataclass
class CausalLM:
    """module: the whole model (with its adapter). passes: the same weights as one forward pass."""

    module: nn.Module
    passes: Passes
    device: torch.device

    @property
    def core(self) -> Any:
        """The transformers model, below an adapter."""
        return self.passes.core

    @property
    def packing(self) -> Packing:
        """What this model can be trained with."""
        return "tree" if self.passes.segments else "flat"

    def token_logprobs(self, batch: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """logprobs_M and entropies_M, with gradient where the module has it."""
        found: tuple[Tensor, Tensor] = self.passes(batch, temperature)
        return found

    def freeze(self, *, precision: str) -> None:
        self.module.requires_grad_(False)
        if precision == "bf16":
            round_parameters(self.module)


def load_causal_lm(path: Path | str, *, settings: Optimization, ranks: Ranks | None = None) -> CausalLM:
    """In float32, on this process's device, with a new adapter where the settings want one, sharded over `ranks`."""
    device = ranks.device if ranks else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module: Any = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
    check_supported(module)
    segments = supports_segments(module)
    if segments:
        module.set_attn_implementation(ATTENTION)
    elif ranks is not None and ranks.division == "context":
        raise ModelUnsupported(
            f"{module.config.model_type} has layers that are not full attention, so its rows cannot be divided among "
            "devices; use optimization.division = data"
        )
    core = module
    if settings.adapter == "lora":
        module = add_adapter(module, rank=settings.lora_rank)
    module.to(device)
    module.train()
    disable_dropout(module)
    if settings.activations != "keep":
        core.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    passes = Passes(core, segments=segments, ranks=ranks, offload=settings.activations == "offload")
    if ranks is not None:
        shard(passes, ranks, precision=settings.precision)
    return CausalLM(module=module, passes=passes, device=device)


def check_supported(module: Any) -> None:
    for name in REFUSED:
        value = getattr(module.config, name, None)
        if value not in (None, 1, 1.0):
            raise ModelUnsupported(
                f"{module.config.model_type} changes its logits ({name} = {value}), which the trainer does not model; "
                "choose a model without it"
            )
    head = module.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelUnsupported(f"{module.config.model_type} has no plain output matrix; choose another model")


def supports_segments(module: Any) -> bool:
    """Full causal attention in every layer, through transformers' attention interface."""
    config = module.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return bool(getattr(module, "_supports_attention_backend", False)) and kinds == {"full_attention"} and not windowed


def add_adapter(module: Any, *, rank: int) -> Any:
    """LoRA on every linear layer but the output (peft)."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        module, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )


def disable_dropout(module: nn.Module) -> None:
    """Logprobs must be comparable with the engine's."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
