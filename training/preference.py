"""Learn from judged pairs: DPO and IPO, exact in memory that does not grow with a pair's length.

From:  pairs of rollouts' samples (training.offline), reference logprobs of the weights that the run starts from.
To:    a StepReport; the trainer's weights moved by one step.
Holds: a rollout's logprob is the sum over its sampled tokens in all its samples, each once; what is context in a
       rollout is context here; the reference is computed before the first step and stored.
Cost:  one more forward pass than a supervised step: the loss of a pair couples its two sides, so their logprobs are
       needed before the first backward. The gradient of the sum is then taken micro-batch by micro-batch, because
       d loss / d logprob of a side is one number for all of that side's tokens.

Worked example, beta 0.1: the chosen side gained 2 nat over the reference, the rejected side lost 1: margin
0.1 * (2 - -1) = 0.3, loss -log sigmoid(0.3) = 0.554, and the gradient pulls with 0.1 * sigmoid(-0.3) = 0.043.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from training.config import Preference
from training.packing import token_numbers
from training.selection import Sample
from training.trainer import StepReport, Trainer, by_sample, throughput


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The samples of each side."""

    chosen: tuple[Sample, ...]
    rejected: tuple[Sample, ...]

    @property
    def sides(self) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        return self.chosen, self.rejected


@dataclass(frozen=True, kw_only=True)
class PairLogprobs:
    """[P] each, sums over a side's sampled tokens; lengths_*: how many those are."""

    chosen_P: Tensor
    rejected_P: Tensor
    reference_chosen_P: Tensor
    reference_rejected_P: Tensor
    lengths_chosen_P: Tensor
    lengths_rejected_P: Tensor


def pair_losses(logprobs: PairLogprobs, settings: Preference) -> tuple[Tensor, Tensor]:
    """([P] losses, [P] margins). margin: what the policy gained over the reference, chosen minus rejected.

    sigmoid: -log sigmoid(beta m), DPO (arXiv 2305.18290, eq. 7), with label smoothing e as cDPO:
    -(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m).
    ipo: (m - 1 / (2 beta))^2 with logprobs averaged over a side's tokens (arXiv 2310.12036, eq. 17).
    """
    gained_P = logprobs.chosen_P - logprobs.reference_chosen_P
    lost_P = logprobs.rejected_P - logprobs.reference_rejected_P
    if settings.loss == "ipo":
        margin_P = gained_P / logprobs.lengths_chosen_P - lost_P / logprobs.lengths_rejected_P
        return (margin_P - 1 / (2 * settings.beta)) ** 2, margin_P
    margin_P = gained_P - lost_P
    smooth = settings.label_smoothing
    losses_P = -(1 - smooth) * logsigmoid(settings.beta * margin_P) - smooth * logsigmoid(-settings.beta * margin_P)
    return losses_P, margin_P


def sample_logprobs(trainer: Trainer, samples: Sequence[Sample]) -> Tensor:
    """[S] float64, sums over each sample's trained tokens, without gradient."""
    sums_S = torch.zeros(len(samples), dtype=torch.float64)
    with torch.no_grad():
        for batch in trainer.micro_batches(samples):
            logprobs_M, _ = trainer.language_model.token_logprobs(batch, temperature=1.0)
            sums_S.index_add_(0, batch.sample_M, logprobs_M.double().cpu())
    return sums_S


def rollout_logprobs(trainer: Trainer, samples: Mapping[UUID, tuple[Sample, ...]]) -> dict[UUID, float]:
    """Of each rollout under the trainer's weights as they are: the reference, when nothing was trained yet."""
    found: dict[UUID, float] = {}
    for rollout_id, own in samples.items():
        found[rollout_id] = float(sample_logprobs(trainer, own).sum())
    return found


def preference_step(
    trainer: Trainer,
    pairs: Sequence[Pair],
    *,
    references: Mapping[UUID, float],
    settings: Preference,
    learning_rate: float,
) -> StepReport:
    """One update on these pairs: the mean of their losses."""
    started = time.monotonic()
    sides = [side for pair in pairs for side in pair.sides]  # chosen, rejected, chosen, ...
    samples = [sample for side in sides for sample in side]
    side_S = torch.tensor([number for number, side in enumerate(sides) for _ in side])
    tokens_S = torch.tensor([sample.num_trained for sample in samples], dtype=torch.float64)
    logprobs_D = torch.zeros(len(sides), dtype=torch.float64)
    logprobs_D.index_add_(0, side_S, sample_logprobs(trainer, samples))
    lengths_D = torch.zeros(len(sides), dtype=torch.float64).index_add_(0, side_S, tokens_S)
    reference_D = torch.tensor([references[side[0].rollout_id] for side in sides], dtype=torch.float64)
    logprobs_D.requires_grad_(True)
    losses_P, margins_P = pair_losses(
        PairLogprobs(
            chosen_P=logprobs_D[0::2],
            rejected_P=logprobs_D[1::2],
            reference_chosen_P=reference_D[0::2],
            reference_rejected_P=reference_D[1::2],
            lengths_chosen_P=lengths_D[0::2],
            lengths_rejected_P=lengths_D[1::2],
        ),
        settings,
    )
    (pull_D,) = torch.autograd.grad(losses_P.sum(), logprobs_D)
    logprobs_T = torch.full((len(token_numbers(samples)),), math.nan)
    batches = trainer.micro_batches(samples)
    entropy = 0.0
    for place, batch in enumerate(batches):
        trainer.between(place, len(batches))
        logprobs_M, entropies_M = trainer.language_model.token_logprobs(batch, temperature=1.0)
        pull_M = pull_D[side_S[batch.sample_M]].to(logprobs_M)
        (logprobs_M * pull_M).sum().backward()  # type: ignore[no-untyped-call]
        logprobs_T[batch.token_M] = logprobs_M.detach().cpu()
        entropy += float(entropies_M.detach().sum())
    loss = float(losses_P.detach().mean())
    norm = trainer.apply(denominator=len(pairs), learning_rate=learning_rate, loss=loss)
    gained_D = (logprobs_D.detach() - reference_D) * settings.beta
    metrics = {
        "loss": loss,
        "pair_accuracy": float((margins_P > 0).double().mean()),
        "pair_margin": settings.beta * float(margins_P.detach().mean()),
        "chosen_gain": float(gained_D[0::2].mean()),
        "rejected_gain": float(gained_D[1::2].mean()),
        "entropy": entropy / max(len(logprobs_T), 1),
        "grad_norm": norm,
        "learning_rate": learning_rate,
        "trained_tokens": float(len(logprobs_T)),
        **throughput(batches, started),
    }
    return StepReport(metrics=metrics, trainer_logprobs=by_sample(logprobs_T, samples))
