"""The run config: one tree, the only place where a default or a bound of a run is written.

From:  the form, TOML, REST or the command line, as plain data.
To:    Attempt.config (resolved), read back by every part through `RunConfig.model_validate`.
Holds: unknown fields are errors; everything wrong is reported at once, by its dotted name.
"""

from typing import Literal

from pydantic import Field

from environments.config import Budgets, Sampling, Section


class ModelSection(Section):
    name: str = Field("smollm2-135m", description="A model of the catalog.")
    start_from: str = Field(
        "", description="Version to start from, as <run name>/<attempt>/<version>; empty: the model itself."
    )


class TaskMixture(Section):
    taskset: str = Field("shell-and-python", description="A task set of the catalog.")
    weight: float = Field(1.0, gt=0, description="Share of groups drawn from it, relative to the others.")
    families: tuple[str, ...] = Field((), description="Only these families; empty: all.")


class TasksSection(Section):
    mixture: tuple[TaskMixture, ...] = Field((TaskMixture(),), min_length=1, description="Task sets and their shares.")
    curriculum: Literal["even", "learnability"] = Field(
        "even",
        description="even: every family of tasks equally often. learnability: families whose rollouts sometimes succeed "
        "and sometimes fail more often, since groups of equal rewards teach nothing.",
    )
    groups_per_step: int = Field(12, ge=1, description="B: groups an optimizer step eats.")
    rollouts_per_group: int = Field(
        6, ge=2, description="N: rollouts of one task. One alone has nothing to compare with."
    )


class HarnessSection(Section):
    name: str = Field("mini-swe-agent", description="A harness of the catalog.")
    max_running: int = Field(16, ge=1, le=20000, description="C: most sandboxes at once.")
    sandbox: Literal["auto", "process", "docker"] = Field(
        "auto", description="Kind of sandbox. auto: docker for tasks that need an image, else process."
    )


class WarmStart(Section):
    demonstrations: int = Field(0, ge=0, le=100000, description="Expert rollouts to imitate first. 0: no warm start.")
    epochs: float = Field(1.0, gt=0, description="Passes over the demonstrations.")
    learning_rate: float = Field(2e-4, gt=0, lt=1, description="Peak, after a short warm-up, decaying to a tenth.")
    batch_size: int = Field(4, ge=1, description="Rollouts an optimizer step takes.")


class Objective(Section):
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "maxrl"] = Field(
        "grpo", description="Credit of a rollout against its group."
    )
    policy_loss: Literal["ppo_clip", "dapo", "gspo", "cispo", "reinforce"] = Field(
        "dapo", description="The policy loss."
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="Lower clip of the ratio, below 1.")
    clip_high: float = Field(0.28, ge=0, description="Upper clip of the ratio, above 1.")
    aggregation: Literal["two-level", "token-mean", "sequence-mean", "constant-length"] = Field(
        "two-level", description="How token losses become one number."
    )
    correction: Literal["none", "tis", "icepop", "icepop-sequence", "decoupled"] = Field(
        "tis", description="Off-policy correction."
    )
    tis_cap: float = Field(2.0, gt=0, description="Cap of the truncated importance weight.")
    icepop_low: float = Field(0.5, ge=0, lt=1, description="icepop masks ratios below it.")
    icepop_high: float = Field(5.0, gt=1, description="icepop masks ratios above it.")
    kl_coefficient: float = Field(0.0, ge=0, description="Weight of the KL to the starting model.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of that KL.")
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="Where the KL counts: added to each token's loss, or taken from its advantage."
    )
    entropy_coefficient: float = Field(0.0, ge=0, description="Entropy bonus.")
    overlong: Literal["train", "zero", "mask", "soft"] = Field(
        "train",
        description="Rollouts that ended at a limit: train as they are; zero (their work was never handed in: it counts 0);"
        " mask (no gradient, still in the baseline); soft: a reward penalty that grows over the last overlong_buffer_tokens.",
    )
    overlong_buffer_tokens: int = Field(
        256, ge=1, description="Sampled tokens before budgets.max_sampled_tokens over which `soft` grows to -1."
    )
    max_samples_per_rollout: int = Field(
        5, ge=0, description="J_max: branches of a rollout that are trained. 0: all; 1: one, for ablations."
    )
    trained_roles: Literal["main", "with-summaries", "all"] = Field(
        "all", description="Whose tokens are trained: the main agent, also its summaries, also sub-agents and theirs."
    )
    turn_discount: float = Field(
        1.0,
        gt=0,
        le=1,
        description="What a turn keeps of the advantage for each turn that comes after it; 1: all of it.",
    )
    turn_mark_weight: float = Field(
        0.0,
        ge=0,
        description="Added to the advantage of turns that a person marked right, taken from those marked wrong.",
    )
    image_unavailable: Literal["exclude", "zero"] = Field(
        "exclude",
        description="A member whose image cannot be had: out of its group's baseline, or in it with the placeholder 0.",
    )


class Supervised(Section):
    dataset: str = Field("", description="A data set of rollouts (Exports page): its sampled tokens are imitated.")
    epochs: float = Field(1.0, gt=0, description="Passes over the data set.")
    learning_rate: float = Field(2e-4, gt=0, lt=1, description="Peak, after a short warm-up, decaying to a tenth.")
    batch_size: int = Field(4, ge=1, description="Rollouts an optimizer step takes.")


class Preference(Section):
    dataset: str = Field("", description="A data set of pairs that people judged (Exports page).")
    loss: Literal["sigmoid", "ipo"] = Field("sigmoid", description="DPO's logistic loss, or IPO's squared one.")
    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the model it starts from.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Share of judgements taken to be wrong (sigmoid).")
    epochs: float = Field(1.0, gt=0, description="Passes over the pairs.")
    learning_rate: float = Field(5e-6, gt=0, lt=1, description="Peak, after a short warm-up, decaying to a tenth.")
    batch_size: int = Field(8, ge=1, description="Pairs an optimizer step takes.")


class Optimization(Section):
    steps: int = Field(9, ge=1, description="Optimizer steps of the online phase.")
    learning_rate: float = Field(5e-5, gt=0, lt=1, description="Highest rate of the online phase.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this norm.")
    micro_batch_tokens: int = Field(4096, ge=64, description="Most tokens in one forward pass; bounds memory.")
    precision: Literal["bf16", "fp32"] = Field(
        "bf16", description="Autocast of the forward pass; master weights are fp32."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps of the online phase over which the learning rate rises.")
    decay: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate falls to a tenth by the last step."
    )
    devices: int = Field(
        1, ge=1, le=64, description="Devices that a cell trains on together: FSDP2 shards weights and optimizer."
    )
    division: Literal["data", "context"] = Field(
        "data",
        description="What the devices divide: micro-batches, or the rows of each (for samples too long for one).",
    )
    packing: Literal["tree", "flat"] = Field(
        "tree", description="tree computes every shared prefix once; flat repeats it in each sample."
    )
    activations: Literal["keep", "checkpoint", "offload"] = Field(
        "keep",
        description="keep; checkpoint (compute layers again in the backward pass); offload (and hold their inputs in"
        " host memory).",
    )
    adapter: Literal["none", "lora"] = Field("none", description="Full fine-tuning, or LoRA.")
    lora_rank: int = Field(16, ge=1, description="Rank of the adapter.")


class Schedule(Section):
    mode: Literal["elastic", "colocate", "async", "sync"] = Field(
        "colocate", description="How cells share serving and training."
    )
    cells: int = Field(1, ge=1, le=1024, description="K: equal cells; the first is the core.")
    burst_steps: int = Field(1, ge=1, description="mu: optimizer steps before weights are published.")
    staleness: int = Field(0, ge=0, description="eta: versions that dispatch may run ahead.")
    lead_groups: int = Field(0, ge=0, description="phi: lead over B, in groups, that keeps cells fed.")
    late_members: Literal["train", "wait", "exclude"] = Field(
        "train", description="A member older than its staleness bound."
    )
    group_deadline_s: float = Field(
        1800.0, gt=0, description="Then a partial group trains with what it has, or is refilled."
    )
    min_members: int = Field(2, ge=2, description="Fewest valid members a group may train with.")
    cache_policy: Literal["recompute", "keep"] = Field("recompute", description="Open contexts at a weight change.")
    keep_versions: int = Field(3, ge=1, description="Versions kept on disk, beside pinned ones.")
    checkpoint_every: int = Field(1, ge=1, description="Optimizer steps between checkpoints.")


class EngineSection(Section):
    kind: Literal["vllm", "scripted"] = Field("vllm", description="scripted is for tests only.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="auto: bfloat16 where the processor computes it fast."
    )
    kv_cache_gb: float = Field(2.0, gt=0, description="Memory for keys and values.")
    max_running: int = Field(64, ge=1, description="Sequences in one engine step.")
    max_context_tokens: int = Field(
        2048, ge=16, description="Longest prompt plus answer the engine is started for; at most the model's context."
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="cuda needs the `vllm` distribution.")
    tensor_parallel: int = Field(1, ge=1, description="Devices one copy of the model is spread over (cuda).")


class Evaluation(Section):
    tasks: int = Field(120, ge=0, description="Held-out tasks, fixed for the run. 0: no evaluation.")
    every_steps: int = Field(0, ge=0, description="Also every so many steps; 0: only first and last version.")
    temperature: float = Field(1.0, ge=0, le=4.0, description="Sampling temperature of evaluation.")
    samples_per_task: int = Field(1, ge=1, le=1024, description="Rollouts of each task; pass@k is known up to this k.")
    split: Literal["heldout", "train"] = Field(
        "heldout", description="Which tasks; only a run that trains nothing may use train."
    )


class ReviewGate(Section):
    mode: Literal["off", "sample", "flagged", "all"] = Field("off", description="Which members wait for a person.")
    share: float = Field(0.1, gt=0, le=1, description="Of `sample`.")
    deadline_s: float = Field(3600.0, gt=0, description="How long a member waits.")
    at_deadline: Literal["train", "exclude", "wait"] = Field("train", description="What then happens.")


Kind = Literal["rl", "evaluation", "supervised", "preference"]

SECTIONS_OF_KIND: dict[str, frozenset[str]] = {
    "rl": frozenset({"warm_start", "objective", "optimization", "schedule", "review_gate"}),
    "evaluation": frozenset(),
    "supervised": frozenset({"supervised", "optimization"}),
    "preference": frozenset({"preference", "optimization"}),
}
"""Which sections a kind of run reads, beside those that every kind does: the form shows no others."""


class RunConfig(Section):
    kind: Kind = Field(
        "rl",
        description="rl: online reinforcement learning. evaluation: train nothing, measure. supervised: imitate a data"
        " set of rollouts. preference: learn from judged pairs (DPO).",
    )
    seed: int = Field(1, ge=0, description="Order of tasks, initial states, evaluation subset.")
    model: ModelSection = ModelSection()
    tasks: TasksSection = TasksSection()
    harness: HarnessSection = HarnessSection()
    sampling: Sampling = Sampling()
    budgets: Budgets = Budgets()
    warm_start: WarmStart = WarmStart()
    supervised: Supervised = Supervised()
    preference: Preference = Preference()
    objective: Objective = Objective()
    optimization: Optimization = Optimization()
    schedule: Schedule = Schedule()
    engine: EngineSection = EngineSection()
    evaluation: Evaluation = Evaluation()
    review_gate: ReviewGate = ReviewGate()
