"""A Hugging Face causal LM as the trainer needs it: micro-batch in, logprobs and entropies of its trained tokens out.

From:  a directory or hub name.
To:    training.trainer (passes), training.export (weights under the names that Hugging Face and vLLM know).
Holds: a model whose output is not plain `hidden @ weight'` is refused when it is loaded, not trained wrongly.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from training.config import Optimization
from training.logprobs import token_logprobs
from training.master_weights import round_parameters
from training.packing import ATTENTION, MicroBatch

REFUSED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Config fields of models that change logits after the output matrix."""


class ModelUnsupported(Exception):
    """Boundary: trainer. The model cannot be trained exactly; another model is needed."""


@dataclass
class CausalLM:
    """module: the whole model (with its adapter). segments: whether attention runs over segments of one row, or the
    samples are padded into rows (models with sliding windows or an attention of their own)."""

    module: nn.Module
    segments: bool
    device: torch.device

    @property
    def core(self) -> Any:
        """The transformers model, below an adapter."""
        return self.module.get_base_model() if hasattr(self.module, "get_base_model") else self.module  # type: ignore[operator]

    def token_logprobs(self, batch: MicroBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
        """logprobs_M and entropies_M in float32, with gradient where the module has it."""
        hidden_TH = self._segment_hidden(batch) if self.segments else self._padded_hidden(batch)
        hidden_MH = hidden_TH[batch.predict_M.to(self.device)]
        weight_VH = self.core.get_output_embeddings().weight
        return token_logprobs(
            hidden_MH.to(weight_VH.dtype), weight_VH, batch.targets_M.to(self.device), temperature=temperature
        )

    def _segment_hidden(self, batch: MicroBatch) -> Tensor:
        outputs = self.core.base_model(
            input_ids=batch.ids_T[None].to(self.device),
            position_ids=batch.positions_T[None].to(self.device),
            use_cache=False,
            segment_lengths=batch.lengths,
            num_padding=batch.num_padding,
        )
        return outputs.last_hidden_state[0]

    def _padded_hidden(self, batch: MicroBatch) -> Tensor:
        """Samples as rows padded at the right, and back into one row."""
        lengths = batch.lengths[:-1] if batch.num_padding else batch.lengths
        width = -(-max(lengths) // 64) * 64
        ids_BL = torch.zeros(len(lengths), width, dtype=torch.int64)
        mask_BL = torch.zeros(len(lengths), width, dtype=torch.int64)
        start = 0
        for row, length in enumerate(lengths):
            ids_BL[row, :length] = batch.ids_T[start : start + length]
            mask_BL[row, :length] = 1
            start += length
        outputs = self.core.base_model(
            input_ids=ids_BL.to(self.device), attention_mask=mask_BL.to(self.device), use_cache=False
        )
        return outputs.last_hidden_state[mask_BL.bool().to(self.device)]

    def freeze(self, *, precision: str) -> None:
        self.module.requires_grad_(False)
        if precision == "bf16":
            round_parameters(self.module)


def load_causal_lm(path: Path | str, *, settings: Optimization) -> CausalLM:
    """In float32, on the first CUDA device where there is one, with a new adapter where the settings want one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module: Any = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
    check_supported(module)
    segments = supports_segments(module)
    if segments:
        module.set_attn_implementation(ATTENTION)
    if settings.adapter == "lora":
        module = add_adapter(module, rank=settings.lora_rank)
    module.to(device)
    module.train()
    disable_dropout(module)
    return CausalLM(module=module, segments=segments, device=device)


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
