"""What is imposed on every call of a rollout, and when it ends. Part of the run config; stored on the Rollout."""

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of a config: unknown fields are errors, values are final."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sampling(Section):
    temperature: float = Field(1.0, ge=0.0, le=4.0, description="0 is greedy. Training divides logits by it too.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Below 1 needs the engine's sampling mask recorded.")
    top_k: int = Field(-1, ge=-1, description="-1 is off. Anything else needs the engine's sampling mask recorded.")
    max_tokens: int = Field(96, ge=1, description="Most tokens one turn may sample.")
    seed: int | None = Field(None, description="Sampling seed; none is random.")


class Budgets(Section):
    max_calls: int = Field(8, ge=1, description="Model calls of one rollout.")
    max_sampled_tokens: int = Field(600, ge=1, description="Tokens the model may sample in one rollout.")
    max_context_tokens: int = Field(1200, ge=16, description="Longest prompt plus answer; at most the model's context.")
    wall_time_s: float = Field(600.0, gt=0, description="Harness time; what is left then is scored.")
    overall_time_s: float = Field(1200.0, gt=0, description="From start to reward; beyond it nothing is scored.")
    idle_s: float = Field(180.0, gt=0, description="No call, no output and no CPU for this long ends it.")
