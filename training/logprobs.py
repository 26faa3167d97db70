"""Logprobs and entropies of given tokens from hidden states, in chunks: no [tokens, vocabulary] tensor outlives one.

From:  hidden states of the positions that predict trained tokens, and the output matrix.
To:    training.trainer, with gradient to both.
Holds: the forward pass keeps [M] numbers; the backward pass computes each chunk's logits again.
Cost:  one more product with the output matrix in the backward pass, for trained tokens only.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_TOKENS = 256
"""Logits of so many tokens exist at a time: 50 MB in float32 at a vocabulary of 49k."""


class ChunkedLogprobs(torch.autograd.Function):
    """hidden_MH, weight_VH in the precision to multiply in; targets_M -> logprobs_M, entropies_M in float32 (float64
    for float64 weights: the equivalence tests)."""

    @staticmethod
    def forward(
        ctx: Any, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        size = len(targets_M)
        logprobs_M = torch.empty(size, dtype=sum_dtype(weight_VH), device=hidden_MH.device)
        normalisers_M, entropies_M = torch.empty_like(logprobs_M), torch.empty_like(logprobs_M)
        for start in range(0, size, CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            logits_CV = chunk_logits(hidden_MH[part], weight_VH, temperature)
            normalisers_M[part] = torch.logsumexp(logits_CV, dim=-1)
            chosen_C = logits_CV.gather(1, targets_M[part, None])[:, 0]
            logprobs_M[part] = chosen_C - normalisers_M[part]
            probabilities_CV = torch.softmax(logits_CV, dim=-1)
            entropies_M[part] = normalisers_M[part] - (probabilities_CV.mul_(logits_CV)).sum(dim=-1)
            del logits_CV, probabilities_CV
        ctx.save_for_backward(hidden_MH, weight_VH, targets_M, normalisers_M, entropies_M)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs_M, entropies_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_MH, weight_VH, targets_M, normalisers_M, entropies_M = ctx.saved_tensors
        grad_logprobs_M, grad_entropies_M = grads
        grad_hidden_MH = torch.empty_like(hidden_MH)
        grad_weight_VH: Tensor | None = None
        for start in range(0, len(targets_M), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            log_p_CV = chunk_logits(hidden_MH[part], weight_VH, ctx.temperature).sub_(normalisers_M[part, None])
            grad_CV = chunk_gradient(
                log_p_CV,
                targets_M[part],
                None if grad_logprobs_M is None else grad_logprobs_M[part],
                None if grad_entropies_M is None else grad_entropies_M[part],
                entropies_M[part],
            )
            grad_CV = grad_CV.div_(ctx.temperature).to(weight_VH.dtype)
            grad_hidden_MH[part] = grad_CV @ weight_VH
            if ctx.needs_input_grad[1]:
                share_VH = grad_CV.T @ hidden_MH[part]
                grad_weight_VH = (
                    share_VH if grad_weight_VH is None else grad_weight_VH.to(sum_dtype(weight_VH)).add_(share_VH)
                )
                del share_VH
            del log_p_CV, grad_CV
        if grad_weight_VH is not None:
            grad_weight_VH = grad_weight_VH.to(weight_VH.dtype)
        elif ctx.needs_input_grad[1]:  # a rank without a trained token still takes part in the sum over ranks
            grad_weight_VH = torch.zeros_like(weight_VH)
        return grad_hidden_MH, grad_weight_VH, None, None


def sum_dtype(weight_VH: Tensor) -> torch.dtype:
    return torch.float64 if weight_VH.dtype == torch.float64 else torch.float32


def chunk_logits(hidden_CH: Tensor, weight_VH: Tensor, temperature: float) -> Tensor:
    """[C, V] in the dtype of sums, divided by the temperature."""
    logits_CV = (hidden_CH @ weight_VH.T).to(sum_dtype(weight_VH))
    return logits_CV if temperature == 1.0 else logits_CV.div_(temperature)


def chunk_gradient(
    log_p_CV: Tensor,
    targets_C: Tensor,
    grad_logprobs_C: Tensor | None,
    grad_entropies_C: Tensor | None,
    entropies_C: Tensor,
) -> Tensor:
    """d loss / d logits: g (onehot - p) for the logprob, -h p (log p + H) for the entropy."""
    if grad_entropies_C is None:
        grad_CV = log_p_CV.exp_()
        scale_C = torch.zeros_like(entropies_C) if grad_logprobs_C is None else -grad_logprobs_C
        grad_CV.mul_(scale_C[:, None])
    else:
        p_CV = log_p_CV.exp()
        grad_CV = log_p_CV.add_(entropies_C[:, None]).mul_(p_CV).mul_(-grad_entropies_C[:, None])
        if grad_logprobs_C is not None:
            grad_CV.addcmul_(p_CV, -grad_logprobs_C[:, None])
    if grad_logprobs_C is not None:
        grad_CV.scatter_add_(1, targets_C[:, None], grad_logprobs_C[:, None].to(grad_CV.dtype))
    return grad_CV


def token_logprobs(
    hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """logprobs_M and entropies_M, float32, of the distribution softmax(hidden weight' / temperature)."""
    logprobs_M, entropies_M = ChunkedLogprobs.apply(hidden_MH, weight_VH, targets_M, temperature)  # type: ignore[no-untyped-call]
    return logprobs_M, entropies_M
