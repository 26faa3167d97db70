"""What every number of a run means: the one list of metric keys, for charts and their hints, and a step's metrics.

From:  training.trainer (its own keys), training.policy_batch (what a step ate), the controller (evaluation, phases).
To:    Metric rows; the web shows DEFINITIONS[key] beside every chart.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Literal

from training.models import Attempt, Metric

if TYPE_CHECKING:  # it imports torch, which the web process does not need
    from training.policy_batch import PolicyBatch

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """unit: short, "" for a pure number. better: the direction that is welcome, other things equal."""

    label: str
    unit: str
    meaning: str
    better: Better = "neither"


def _define(label: str, unit: str, meaning: str, better: Better = "neither") -> Definition:
    return Definition(label=label, unit=unit, meaning=meaning, better=better)


DEFINITIONS: dict[str, Definition] = {
    "reward_mean": _define("Reward", "", "Mean effective reward of the members that count.", "higher"),
    "reward_std": _define("Reward spread", "", "Standard deviation of those rewards over the whole step."),
    "solved_fraction": _define("Solved", "share", "Share of counting members with a reward above 0.", "higher"),
    "advantage_mean": _define("Advantage", "", "Mean advantage over counting members; near 0 by construction."),
    "advantage_abs": _define("Advantage size", "", "Mean absolute advantage: how much signal the step carries."),
    "loss": _define("Loss", "", "What the step minimised. A policy loss has no absolute meaning."),
    "entropy": _define("Entropy", "nat", "Mean entropy of the trainer's distribution at trained tokens."),
    "kl": _define("KL to start", "nat", "Estimated KL divergence from the starting model, where it is in the loss."),
    "clip_fraction": _define("Clipped", "share", "Trained tokens whose gradient the clip took away."),
    "ratio_mean": _define("Importance ratio", "", "Mean of trainer over engine probability; 1 is on policy."),
    "ratio_max": _define("Largest ratio", "", "Largest trainer over engine probability of one token.", "lower"),
    "correction_weight": _define("Correction weight", "", "Mean off-policy weight after its cap or band."),
    "masked_fraction": _define("Masked by correction", "share", "Tokens that the correction left out.", "lower"),
    "mismatch_mean": _define(
        "Mismatch", "nat", "Mean absolute difference of trainer's and engine's logprobs of the same tokens.", "lower"
    ),
    "mismatch_max": _define("Largest mismatch", "nat", "Largest such difference of one token.", "lower"),
    "mismatch_kl": _define("Mismatch KL", "nat", "Estimated KL divergence from engine to trainer.", "lower"),
    "grad_norm": _define("Gradient norm", "", "Norm before it was bounded."),
    "learning_rate": _define("Learning rate", "", "Of this step."),
    "trained_tokens": _define("Trained tokens", "tokens", "Sampled tokens in the loss, each once."),
    "computed_tokens": _define("Computed tokens", "tokens", "Tokens that went through the model, context included."),
    "length_mean": _define("Sampled length", "tokens", "Mean tokens that the model sampled in one rollout."),
    "context_max": _define("Longest context", "tokens", "Longest prompt plus answer of any rollout of the step."),
    "calls_mean": _define("Calls", "calls", "Mean model calls of one rollout."),
    "branches_mean": _define("Branches", "branches", "Mean branches of one rollout's tree."),
    "samples_mean": _define("Samples", "samples", "Mean branches of one rollout that were trained."),
    "tokens_left": _define("Tokens left out", "tokens", "Trainable tokens beyond the most samples of a rollout.", "lower"),
    "no_signal_fraction": _define(
        "No signal", "share", "Groups whose members all got the same reward: nothing to learn from.", "lower"
    ),
    "staleness_mean": _define("Staleness", "versions", "Mean of version in training minus oldest sampling version."),
    "staleness_max": _define("Largest staleness", "versions", "Of any member of the step.", "lower"),
    "members": _define("Members", "rollouts", "Members that counted in this step."),
    "excluded": _define("Excluded", "rollouts", "Members of this step's groups that did not count.", "lower"),
    "train_s": _define("Training", "s", "Seconds of passes and update.", "lower"),
    "save_s": _define("Saving", "s", "Seconds to write checkpoint and weights.", "lower"),
    "load_s": _define("Reading", "s", "Seconds to read the step's record and cut it into samples.", "lower"),
    "train_tokens_per_s": _define("Training speed", "tokens/s", "Computed tokens over training seconds.", "higher"),
    "peak_memory_bytes": _define("Trainer memory", "bytes", "Most resident memory the trainer process ever had.", "lower"),
    "heldout/rate": _define("Held-out success", "share", "Share of scored held-out tasks that were solved.", "higher"),
    "heldout/mean_reward": _define("Held-out reward", "", "Mean reward on held-out tasks.", "higher"),
    "generation_s": _define("Generation", "s", "Seconds from the first dispatch of a step to its last ready group.", "lower"),
    "publish_s": _define("Publication", "s", "Seconds to bring new weights into the engines.", "lower"),
    "steps_total": _define("Planned steps", "steps", "Steps that the warm start will take."),
}  # fmt: skip


def define(key: str) -> Definition:
    """Also of keys with a part after a slash, one series each: `reward_mean/<family>`, `excluded/<reason>`."""
    if key in DEFINITIONS:
        return DEFINITIONS[key]
    stem, _, part = key.partition("/")
    known = DEFINITIONS.get(stem) or Definition(label=stem, unit="", meaning="Not described.")
    return known if not part else Definition(
        label=f"{known.label}: {part}", unit=known.unit, meaning=known.meaning, better=known.better
    )  # fmt: skip


def batch_metrics(batch: "PolicyBatch", *, families: dict[int, str]) -> dict[str, float]:
    """What a policy step ate. families: of each member's task, by member id."""
    members = batch.members
    rewards = [float(each.member.reward or 0.0) for each in members]
    stale = [each.staleness for each in members if each.staleness is not None]
    rollouts = [each.member.rollout for each in members]
    found = {
        "reward_mean": mean(rewards),
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "solved_fraction": mean([float(reward > 0) for reward in rewards]),
        "advantage_mean": mean([each.advantage for each in members]),
        "advantage_abs": mean([abs(each.advantage) for each in members]),
        "length_mean": mean([float(rollout.sampled_tokens) for rollout in rollouts]),
        "context_max": float(max((rollout.longest_context for rollout in rollouts), default=0)),
        "calls_mean": mean([float(rollout.num_calls) for rollout in rollouts]),
        "branches_mean": mean([float(rollout.num_branches) for rollout in rollouts]),
        "samples_mean": mean([float(len(each.selection.samples)) for each in members]),
        "tokens_left": float(sum(each.selection.num_left for each in members)),
        "no_signal_fraction": len(batch.no_signal) / max(len(batch.groups), 1),
        "staleness_mean": mean([float(value) for value in stale]),
        "staleness_max": float(max(stale, default=0)),
        "members": float(len(members)),
        "excluded": float(len(batch.excluded)),
    }
    by_family: dict[str, list[float]] = {}
    for each, reward in zip(members, rewards, strict=True):
        by_family.setdefault(families.get(each.member.pk, "") or "other", []).append(reward)
    found |= {f"reward_mean/{name}"[:60]: mean(values) for name, values in by_family.items()}
    reasons = Counter(reason.split(":")[0] for _, reason in batch.excluded)
    return found | {f"excluded/{reason}"[:60]: float(count) for reason, count in reasons.items()}


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def save_metrics(attempt: Attempt, *, kind: str, step: int, values: dict[str, float]) -> None:
    """Again with the same step: the newer numbers stay."""
    Metric.objects.bulk_create(
        [Metric(attempt=attempt, kind=kind, step=step, key=key, value=value) for key, value in values.items()],
        update_conflicts=True,
        unique_fields=["attempt", "kind", "step", "key"],
        update_fields=["value", "at"],
    )
