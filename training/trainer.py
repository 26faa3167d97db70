"""One optimizer step after another on a Hugging Face causal LM: supervised or policy loss.

From:  samples with advantages (training.policy_batch, training.warm_start).
To:    reports with metrics and per-token logprobs; weights (training.export), state (training.checkpoints).
Holds: all micro-batches of a step read one version of the weights; sums are divided once; a step that is not finite
       changes nothing; memory is bounded by `micro_batch_tokens` (and the longest sample).
Never: reads rows, writes files.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.causal_lm import CausalLM, load_causal_lm
from training.config import Objective, Optimization
from training.corrections import MASKING, Bounds, build_correction, measure_mismatch, old_logprobs
from training.master_weights import MasterWeights
from training.memory import peak_bytes, release_free_memory
from training.objectives import (
    POLICY_LOSSES,
    Aggregation,
    Clip,
    Tokens,
    build_aggregation,
    charge_kl,
    kl_penalty,
    supervised,
)
from training.packing import MicroBatch, build_micro_batches, token_numbers
from training.parallel import Ranks
from training.selection import Sample
from training.trainer_group import announce_load, led


class TrainerError(Exception):
    """Boundary: trainer. The step was not applied; a retry with the same data fails again."""


class NotFinite(TrainerError):
    """Loss or gradient is NaN or infinite. The step was dropped; the weights are as before, and training can go on."""


@dataclass(frozen=True, kw_only=True)
class TrainRollout:
    """The samples of one rollout, all with its advantage.

    turn_advantages: [num_trained] of each sample instead, where turns are credited apart (training.turn_credit).
    """

    samples: tuple[Sample, ...]
    advantage: float
    turn_advantages: tuple[npt.NDArray[np.float32], ...] | None = None

    @property
    def advantages(self) -> list[npt.NDArray[np.float32]]:
        """[num_trained] of each sample."""
        if self.turn_advantages is not None:
            return list(self.turn_advantages)
        return [np.full(sample.num_trained, self.advantage, dtype=np.float32) for sample in self.samples]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """metrics: by keys of training.metrics. trainer_logprobs: an array a sample over its trained tokens, NaN where the
    sample took no part (a policy step leaves out rollouts without gradient)."""

    metrics: dict[str, float]
    trainer_logprobs: list[npt.NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class PolicyTerms:
    """What the policy loss of a step needs beside its tokens."""

    objective: Objective
    temperature: float
    constant_length: int

    @property
    def bounds(self) -> Bounds:
        objective = self.objective
        return Bounds(cap=objective.tis_cap, low=objective.icepop_low, high=objective.icepop_high)


@dataclass
class Sums:
    """Over the micro-batches of a step, of quantities of each trained token."""

    loss: float = 0.0
    tokens: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    weight: float = 0.0
    kl: float = 0.0


def never() -> bool:
    return False


@dataclass
class Trainer:
    """A model on one device with its optimizer. `load` makes one."""

    language_model: CausalLM
    masters: MasterWeights
    optimizer: torch.optim.AdamW
    settings: Optimization
    reference_path: Path | None = None
    should_stop: Callable[[], bool] = never
    on_micro_batch: Callable[[int, int], None] = field(default=lambda done, total: None)
    ranks: Ranks | None = None
    is_led: bool = False
    """Whether a call that every rank makes is going on."""
    _reference: CausalLM | None = None

    @classmethod
    def load(cls, path: Path | str, *, settings: Optimization, seed: int, ranks: Ranks | None = None) -> "Trainer":
        """path: Hugging Face directory or hub name. seed: of an adapter's initial weights and dropout.

        ranks: of a cell with several devices; each of its processes then calls the same methods with the same data.
        """
        announce_load(ranks, path, settings, seed)
        torch.manual_seed(seed)
        language_model = load_causal_lm(path, settings=settings, ranks=ranks)
        masters = MasterWeights(language_model.module, precision=settings.precision, ranks=ranks)
        trainer = cls(
            language_model=language_model,
            masters=masters,
            optimizer=build_optimizer(masters, settings),
            settings=settings,
            ranks=ranks,
        )
        release_free_memory()
        return trainer

    @property
    def leads(self) -> bool:
        """Whether this process writes files; with several ranks the first does."""
        return self.ranks is None or self.ranks.rank == 0

    def wait(self) -> None:
        """Until every rank is here."""
        if self.ranks is not None:
            self.ranks.sum(torch.zeros(1))

    @led
    def reset_optimizer(self) -> None:
        """Forget the moments: the online phase starts with none of the warm start's."""
        self.optimizer = build_optimizer(self.masters, self.settings)

    @led
    def supervised_step(self, samples: Sequence[Sample], *, learning_rate: float) -> StepReport:
        """Cross entropy, mean over the trained tokens of the batch."""
        started = time.monotonic()
        numbers_T = token_numbers(samples)
        logprobs_T = torch.full((len(numbers_T),), math.nan)
        sums = Sums()
        batches = self.micro_batches(samples)
        for batch, counts in self._turns(batches):
            logprobs_M, entropies_M = self.language_model.token_logprobs(batch, temperature=1.0)
            loss = supervised(logprobs_M).sum() * counts
            loss.backward()  # type: ignore[no-untyped-call]
            if counts:
                logprobs_T[batch.token_M] = logprobs_M.detach().float().cpu()
                sums.loss += float(loss.detach())
                sums.entropy += float(entropies_M.detach().sum())
                sums.tokens += len(batch.targets_M)
            del loss, logprobs_M, entropies_M
        sums, logprobs_T = self._together(sums, logprobs_T)
        norm = self.apply(denominator=max(sums.tokens, 1), learning_rate=learning_rate, loss=sums.loss)
        metrics = {
            "loss": sums.loss / max(sums.tokens, 1),
            "entropy": sums.entropy / max(sums.tokens, 1),
            "grad_norm": norm,
            "learning_rate": learning_rate,
            **throughput(batches, started),
        }
        return StepReport(metrics=metrics, trainer_logprobs=by_sample(logprobs_T, samples))

    @led
    def policy_step(self, rollouts: Sequence[TrainRollout], *, terms: PolicyTerms, learning_rate: float) -> StepReport:
        """One update. Samples whose loss has no gradient (advantage 0, nothing else in the loss) count in the
        denominators and are not computed."""
        started = time.monotonic()
        objective = terms.objective
        samples = [sample for rollout in rollouts for sample in rollout.samples]
        numbers_T = token_numbers(samples)
        owners = torch.tensor([place for place, rollout in enumerate(rollouts) for _ in rollout.samples])
        advantages = [advantage_t for rollout in rollouts for advantage_t in rollout.advantages]
        advantage_T = torch.from_numpy(np.concatenate([*advantages, np.zeros(0, dtype=np.float32)]))
        all_matter = objective.kl_coefficient > 0 or objective.entropy_coefficient > 0
        wanted = [number for number, advantage_t in enumerate(advantages) if all_matter or advantage_t.any()]
        batches = self.micro_batches(samples, wanted)
        keep_T = self._kept_tokens(batches, len(numbers_T), terms)
        aggregation = aggregate(numbers_T, owners, keep_T, terms)

        logprobs_T = torch.full((len(numbers_T),), math.nan)
        behaviour_T = torch.full((len(numbers_T),), math.nan)
        sums = Sums()
        for batch, counts in self._turns(batches):
            logprobs_M = self._policy_micro_step(batch, aggregation, advantage_T, keep_T, terms, sums, counts=counts)
            if counts:
                logprobs_T[batch.token_M] = logprobs_M
        for batch in batches:
            behaviour_T[batch.token_M] = batch.behaviour_logprobs_M
        sums, logprobs_T = self._together(sums, logprobs_T)
        norm = 0.0
        if batches:
            norm = self.apply(denominator=aggregation.denominator, learning_rate=learning_rate, loss=sums.loss)
        done_T = ~logprobs_T.isnan()
        mismatch = measure_mismatch(logprobs_T[done_T], behaviour_T[done_T])
        count = max(sums.tokens, 1)
        metrics = {
            "loss": sums.loss / aggregation.denominator,
            "entropy": sums.entropy / count,
            "kl": sums.kl / count,
            "clip_fraction": sums.clipped / count,
            "ratio_mean": sums.ratio / count,
            "ratio_max": sums.ratio_max,
            "correction_weight": sums.weight / count,
            "masked_fraction": float((~keep_T).sum()) / max(len(numbers_T), 1),
            "mismatch_mean": mismatch.mean,
            "mismatch_max": mismatch.max,
            "mismatch_kl": mismatch.kl,
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "trained_tokens": float(len(numbers_T)),
            **throughput(batches, started),
        }
        return StepReport(metrics=metrics, trainer_logprobs=by_sample(logprobs_T, samples))

    def _policy_micro_step(
        self,
        batch: MicroBatch,
        aggregation: Aggregation,
        advantage_T: Tensor,
        keep_T: Tensor,
        terms: PolicyTerms,
        sums: Sums,
        *,
        counts: bool,
    ) -> Tensor:
        """Backward of one micro-batch's share of the loss. returns its logprobs_M without gradient.

        Tokens that a correction masks are not there for the loss, nor in a sequence's mean ratio.
        counts: False where the passes are made only because other ranks make theirs.
        """
        objective = terms.objective
        logprobs_M, entropies_M = self.language_model.token_logprobs(batch, temperature=terms.temperature)
        device = logprobs_M.device
        kept_M = keep_T[batch.token_M].to(device)
        sequence_M, behaviour_M = batch.sample_M.to(device), batch.behaviour_logprobs_M.to(device)
        advantages_M = advantage_T[batch.token_M].to(device)
        proximal_M = logprobs_M.detach()
        kl_M = self._kl(batch, logprobs_M, terms) if objective.kl_coefficient else torch.zeros_like(proximal_M)
        if objective.kl_in == "reward":
            advantages_M = charge_kl(advantages_M, kl_M, coefficient=objective.kl_coefficient)
        correction = build_correction(
            objective.correction,
            proximal_T=proximal_M,
            behaviour_T=behaviour_M,
            sequence_T=sequence_M,
            bounds=terms.bounds,
        )
        tokens = Tokens(
            trainer_logprobs_T=logprobs_M[kept_M],
            old_logprobs_T=old_logprobs(objective.correction, proximal_T=proximal_M, behaviour_T=behaviour_M)[kept_M],
            advantages_T=advantages_M[kept_M],
            sequence_T=sequence_M[kept_M],
        )
        clip = Clip(low=objective.clip_low, high=objective.clip_high)
        result = POLICY_LOSSES[objective.policy_loss](tokens, clip)
        losses_K = result.losses_T * correction.weights_T[kept_M]
        if objective.kl_coefficient and objective.kl_in == "loss":
            losses_K = losses_K + objective.kl_coefficient * kl_M[kept_M]
        if objective.entropy_coefficient:
            losses_K = losses_K - objective.entropy_coefficient * entropies_M[kept_M]
        loss = (losses_K * aggregation.weights_T[batch.token_M].to(device)[kept_M]).sum() * counts
        loss.backward()  # type: ignore[no-untyped-call]
        if counts:
            ratio_M = torch.exp(proximal_M - behaviour_M)
            sums.loss += float(loss.detach())
            sums.tokens += len(batch.targets_M)
            sums.entropy += float(entropies_M.detach().sum())
            sums.clipped += float(result.clipped_T.sum())
            sums.ratio += float(ratio_M.sum())
            sums.ratio_max = max(sums.ratio_max, float(ratio_M.max()))
            sums.weight += float(correction.weights_T.sum())
            sums.kl += float(kl_M.detach().sum())
        return proximal_M.float().cpu()

    @torch.no_grad()
    def _kept_tokens(self, batches: Sequence[MicroBatch], num_tokens: int, terms: PolicyTerms) -> Tensor:
        """[tokens of the step] bool: what a masking correction leaves. It must be known before the first backward,
        because masked tokens leave the denominators; so IcePop pays one more forward pass."""
        dropped_T = torch.zeros(num_tokens, dtype=torch.int32)
        if terms.objective.correction not in MASKING:
            return dropped_T == 0
        for batch, counts in self._turns(batches):
            logprobs_M, _ = self.language_model.token_logprobs(batch, temperature=terms.temperature)
            correction = build_correction(
                terms.objective.correction,
                proximal_T=logprobs_M.cpu(),
                behaviour_T=batch.behaviour_logprobs_M,
                sequence_T=batch.sample_M,
                bounds=terms.bounds,
            )
            if counts:
                dropped_T[batch.token_M] = (~correction.keep_T).int()
        if self.ranks is not None:
            dropped_T = self.ranks.max(dropped_T)
        return dropped_T == 0

    def micro_batches(self, samples: Sequence[Sample], wanted: Sequence[int] | None = None) -> list[MicroBatch]:
        packing = self.settings.packing if self.language_model.packing == "tree" else "flat"
        return build_micro_batches(
            samples, budget_tokens=self.settings.micro_batch_tokens, wanted=wanted, packing=packing
        )

    def _turns(self, batches: Sequence[MicroBatch]) -> Iterator[tuple[MicroBatch, bool]]:
        """The micro-batches of this process, and whether each counts: where ranks divide micro-batches, all must make
        as many passes (their collectives meet), so the last turn of some repeats one for nothing."""
        ranks = self.ranks
        split = ranks is not None and ranks.division == "data"
        mine, step = (ranks.rank, ranks.world) if split and ranks else (0, 1)
        for first in range(0, len(batches), step):
            self.between(first, len(batches))
            place = first + mine
            yield (batches[place], True) if place < len(batches) else (batches[first], False)

    def _together(self, sums: Sums, logprobs_T: Tensor) -> tuple[Sums, Tensor]:
        """Of all ranks. A token was computed by one of them; nobody's stay NaN."""
        ranks = self.ranks
        if ranks is None or ranks.division == "context":
            return sums, logprobs_T
        names = [each.name for each in fields(Sums) if each.name != "ratio_max"]
        values = ranks.sum(torch.tensor([float(getattr(sums, name)) for name in names], dtype=torch.float64))
        largest = ranks.max(torch.tensor([sums.ratio_max], dtype=torch.float64))
        done_T = ranks.max((~logprobs_T.isnan()).int()).bool()
        whole_T = ranks.sum(logprobs_T.nan_to_num(nan=0.0)).where(done_T, torch.tensor(math.nan))
        return Sums(**dict(zip(names, values.tolist(), strict=True)), ratio_max=float(largest)), whole_T

    def _kl(self, batch: MicroBatch, logprobs_M: Tensor, terms: PolicyTerms) -> Tensor:
        """KL to the reference model, which is loaded when the first step needs it."""
        if self._reference is None:
            if self.reference_path is None:
                raise TrainerError("a KL coefficient needs the starting model, and no reference path was given")
            frozen = self.settings.model_copy(update={"adapter": "none"})
            self._reference = load_causal_lm(self.reference_path, settings=frozen, ranks=self.ranks)
            self._reference.freeze(precision="fp32" if self.ranks else self.settings.precision)
        with torch.no_grad():
            reference_M, _ = self._reference.token_logprobs(batch, temperature=terms.temperature)
        return kl_penalty(terms.objective.kl_estimator, trainer_logprobs_T=logprobs_M, reference_logprobs_T=reference_M)

    def between(self, done: int, total: int) -> None:
        """Before each micro-batch: where a stop may interrupt."""
        if self.should_stop():
            self.masters.drop_gradients()
            raise InterruptedError("the trainer was asked to stop in the middle of a step")
        self.on_micro_batch(done, total)

    def apply(self, *, denominator: float, learning_rate: float, loss: float) -> float:
        """The optimizer's step on the summed gradients. returns their norm. Raises NotFinite, nothing changed."""
        norm = self.masters.scale_and_clip(denominator=denominator, max_norm=self.settings.max_grad_norm)
        if not (math.isfinite(norm) and math.isfinite(loss)):
            self.masters.drop_gradients()
            what = f"the gradient is not finite (norm {norm})" if math.isfinite(loss) else f"the loss is {loss}"
            raise NotFinite(f"{what}; nothing was changed. Lower the learning rate, or train in fp32")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.masters.drop_gradients()
        self.masters.publish_to_copies()
        return norm


def build_optimizer(masters: MasterWeights, settings: Optimization) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        list(masters), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.999), fused=True
    )


def aggregate(numbers_T: Tensor, owners_S: Tensor, keep_T: Tensor, terms: PolicyTerms) -> Aggregation:
    """Weights over all trained tokens of the step, 0 where masked."""
    kept = numbers_T[keep_T]
    owner_T = owners_S[kept] if len(kept) else kept
    aggregation = build_aggregation(
        terms.objective.aggregation,
        sequence_T=kept,
        rollout_T=owner_T,
        num_rollouts=len(torch.unique(owner_T)),
        constant_length=terms.constant_length,
    )
    weights_T = torch.zeros(len(numbers_T))
    weights_T[keep_T] = aggregation.weights_T
    return Aggregation(weights_T=weights_T, denominator=aggregation.denominator)


def by_sample(values_T: Tensor, samples: Sequence[Sample]) -> list[npt.NDArray[np.float32]]:
    parts = torch.split(values_T, [sample.num_trained for sample in samples]) if samples else ()
    return [part.numpy().astype(np.float32) for part in parts]


def throughput(batches: Sequence[MicroBatch], started: float) -> dict[str, float]:
    seconds = time.monotonic() - started
    tokens = sum(batch.num_tokens for batch in batches)
    return {
        "train_s": seconds,
        "computed_tokens": float(tokens),
        "flat_tokens": float(sum(batch.flat_tokens for batch in batches)),
        "train_tokens_per_s": tokens / max(seconds, 1e-9),
        "peak_memory_bytes": float(peak_bytes()),
    }
