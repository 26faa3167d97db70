"""What every number of a run means: the one list of metric keys, with unit, meaning and how each is computed.

From:  nobody.
To:    charts and their hints, exports, docs/reference/metrics.md (written by `manage.py metrics_reference`).
Holds: a number that is stored has its definition here (tests/training/test_metrics.py).
"""

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """unit: short, "" for a pure number. how: from which rows or tensors it is computed. better: the direction that is
    welcome, other things equal."""

    label: str
    unit: str
    meaning: str
    better: Better = "neither"
    how: str = ""


def _define(label: str, unit: str, meaning: str, better: Better = "neither", how: str = "") -> Definition:
    return Definition(label=label, unit=unit, meaning=meaning, better=better, how=how)


DEFINITIONS: dict[str, Definition] = {
    "reward_mean": _define("Reward", "", "Mean effective reward of the members that count.", "higher", how="mean of Member.reward (the override, else the verifier's) over members of the step that are not excluded"),
    "reward_std": _define("Reward spread", "", "Standard deviation of those rewards over the whole step.", how="population standard deviation of the same rewards"),
    "solved_fraction": _define("Solved", "share", "Share of counting members with a reward above 0.", "higher", how="members with reward > 0 / members"),
    "advantage_mean": _define("Advantage", "", "Mean advantage over counting members; near 0 by construction.", how="mean of Member.advantage"),
    "advantage_abs": _define("Advantage size", "", "Mean absolute advantage: how much signal the step carries.", how="mean of |Member.advantage|"),
    "loss": _define("Loss", "", "What the step minimised. A policy loss has no absolute meaning.", how="sum of weighted token losses / the aggregation's denominator (training.objectives)"),
    "entropy": _define("Entropy", "nat", "Mean entropy of the trainer's distribution at trained tokens.", how="-sum p log p at each trained position, mean over trained tokens; at the sampling temperature"),
    "kl": _define("KL to start", "nat", "Estimated KL divergence from the starting model, where it is in the loss.", how="objective.kl_estimator of trainer and reference logprobs, mean over trained tokens"),
    "clip_fraction": _define("Clipped", "share", "Trained tokens whose gradient the clip took away.", how="tokens where the clipped term was the smaller one / trained tokens"),
    "ratio_mean": _define("Importance ratio", "", "Mean of trainer over engine probability; 1 is on policy.", how="mean of exp(trainer logprob - behaviour logprob)"),
    "ratio_max": _define("Largest ratio", "", "Largest trainer over engine probability of one token.", "lower", how="maximum of the same"),
    "correction_weight": _define("Correction weight", "", "Mean off-policy weight after its cap or band.", how="mean of the correction's weights (training.corrections)"),
    "masked_fraction": _define("Masked by correction", "share", "Tokens that the correction left out.", "lower", how="tokens that the correction masked / trained tokens"),
    "mismatch_mean": _define(
        "Mismatch", "nat", "Mean absolute difference of trainer's and engine's logprobs of the same tokens.", "lower",
        how="mean of |trainer logprob - behaviour logprob| over trained tokens",
    ),
    "mismatch_max": _define("Largest mismatch", "nat", "Largest such difference of one token.", "lower", how="maximum of the same"),
    "mismatch_kl": _define("Mismatch KL", "nat", "Estimated KL divergence from engine to trainer.", "lower", how="mean of exp(d) - 1 - d with d = trainer - behaviour logprob (k3)"),
    "grad_norm": _define("Gradient norm", "", "Norm before it was bounded.", how="L2 norm of all gradients after the division by the denominator, before clipping"),
    "learning_rate": _define("Learning rate", "", "Of this step.", how="the optimizer's rate in this step"),
    "reward_hist": _define("Reward histogram", "rollouts", "Rollouts of the step whose reward lies in this tenth; the last one holds 1 too.", how="counts of Member.reward, below 0 in the first, above 1 in the last"),
    "generated_tokens_per_s": _define("Sampling speed", "tokens/s", "Sampled tokens of the step's rollouts over the seconds of their generation.", "higher", how="sum of Rollout.sampled_tokens / generation_s"),
    "delivered_rollouts": _define("Delivered rollouts", "share", "Rollouts dispatched so far that were trained.", "higher", how="training.delivery: trained / all members of the attempt"),
    "delivered_tokens": _define("Delivered tokens", "share", "Tokens sampled so far that were trained.", "higher", how="training.delivery: trained tokens / sampled tokens of all members of the attempt"),
    "trained_tokens": _define("Trained tokens", "tokens", "Sampled tokens in the loss, each once.", how="tokens with loss mask 1 in the step's samples"),
    "computed_tokens": _define("Computed tokens", "tokens", "Tokens that went through the model, context included.", how="tokens of all micro-batches, padding excluded"),
    "flat_tokens": _define(
        "Flat tokens", "tokens", "Tokens of the trained samples with shared prefixes counted in each.",
        how="sum of Sample.num_tokens over the samples that went through the model",
    ),
    "length_mean": _define("Sampled length", "tokens", "Mean tokens that the model sampled in one rollout.", how="mean of Rollout.sampled_tokens"),
    "context_max": _define("Longest context", "tokens", "Longest prompt plus answer of any rollout of the step.", how="maximum of Rollout.longest_context"),
    "calls_mean": _define("Calls", "calls", "Mean model calls of one rollout.", how="mean of Rollout.num_calls"),
    "branches_mean": _define("Branches", "branches", "Mean branches of one rollout's tree.", how="mean of Rollout.num_branches"),
    "samples_mean": _define("Samples", "samples", "Mean branches of one rollout that were trained.", how="mean number of samples that selection took"),
    "tokens_left": _define("Tokens left out", "tokens", "Trainable tokens beyond the most samples of a rollout.", "lower", how="sum of Selection.num_left"),
    "no_signal_fraction": _define(
        "No signal", "share", "Groups whose members all got the same reward: nothing to learn from.", "lower",
        how="groups of the step with equal rewards / groups of the step",
    ),
    "staleness_mean": _define("Staleness", "versions", "Mean of version in training minus oldest sampling version.", how="mean of Member.staleness"),
    "staleness_max": _define("Largest staleness", "versions", "Of any member of the step.", "lower", how="maximum of Member.staleness"),
    "members": _define("Members", "rollouts", "Members that counted in this step.", how="members of the step that are not excluded"),
    "excluded": _define("Excluded", "rollouts", "Members of this step's groups that did not count.", "lower", how="members of the step's groups that are excluded"),
    "train_s": _define("Training", "s", "Seconds of passes and update.", "lower", how="monotonic clock around the passes and the update"),
    "save_s": _define("Saving", "s", "Seconds to write checkpoint and weights.", "lower", how="monotonic clock around writing version and checkpoint"),
    "load_s": _define("Reading", "s", "Seconds to read the step's record and cut it into samples.", "lower", how="monotonic clock around reading nodes and cutting samples"),
    "train_tokens_per_s": _define("Training speed", "tokens/s", "Computed tokens over training seconds.", "higher", how="computed_tokens / train_s"),
    "peak_memory_bytes": _define("Trainer memory", "bytes", "Most resident memory the trainer process ever had.", "lower", how="VmHWM of the trainer process"),
    "heldout/rate": _define("Held-out success", "share", "Share of scored held-out tasks that were solved.", "higher", how="rollouts with reward >= 1 / scored rollouts"),
    "heldout/mean_reward": _define("Held-out reward", "", "Mean reward on held-out tasks.", "higher", how="mean reward of scored rollouts"),
    "pass_at": _define("Pass at", "share", "Mean over tasks of the chance that one of k rollouts solves it, unbiased (arXiv 2107.03374).", "higher", how="training.pass_rates.rate over the evaluation's tasks"),
    "pair_accuracy": _define("Pairs right", "share", "Pairs whose chosen side gained more over the reference than the rejected one.", "higher", how="pairs with a margin above 0 / pairs"),
    "pair_margin": _define("Pair margin", "nat", "beta times what the chosen side gained more than the rejected one, mean.", "higher", how="training.preference.pair_losses"),
    "chosen_gain": _define("Chosen gain", "nat", "beta times log-probability of the chosen side, policy minus reference, mean.", how="beta * (policy - reference) log-probability, summed over a side's sampled tokens"),
    "rejected_gain": _define("Rejected gain", "nat", "The same of the rejected side.", "lower", how="beta * (policy - reference) log-probability, summed over a side's sampled tokens"),
    "dropped_steps": _define("Dropped steps", "steps", "1 where the step's loss or gradient was not finite, so that nothing was changed.", "lower", how="1 where the trainer raised NotFinite"),
    "generation_s": _define("Generation", "s", "Seconds from the first dispatch of a step to its last ready group.", "lower", how="last Group.ready_at - first Group.created_at of the step"),
    "publish_s": _define("Publication", "s", "Seconds to bring new weights into the engines.", "lower", how="Version.publish_s"),
    "steps_total": _define("Planned steps", "steps", "Steps that are planned before version 0.", how="number of batches of the plan"),
}  # fmt: skip


def define(key: str) -> Definition:
    """Also of keys with a part after a slash, one series each: `reward_mean/<family>`, `excluded/<reason>`."""
    if key in DEFINITIONS:
        return DEFINITIONS[key]
    stem, _, part = key.partition("/")
    known = DEFINITIONS.get(stem) or Definition(label=stem, unit="", meaning="Not described.")
    return known if not part else Definition(
        label=f"{known.label}: {part}", unit=known.unit, meaning=known.meaning, better=known.better, how=known.how
    )  # fmt: skip
