"""What REST takes and gives, as types; OpenAPI is made from them."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from ninja import Field, Schema


class FieldErrorOut(Schema):
    field: str = Field(description="Dotted name in the config; empty: the whole.")
    message: str
    remedy: str


class Problems(Schema):
    """Nothing was done; `errors` names every wrong field."""

    detail: str
    errors: list[FieldErrorOut] = []


class Problem(Schema):
    detail: str


class CheckIn(Schema):
    config: dict[str, Any] = Field(default_factory=dict, description="Sections of the run config; missing: defaults.")


class CheckOut(Schema):
    config: dict[str, Any] = Field(description="Every default resolved.")
    differences: list[dict[str, Any]]
    estimate: dict[str, Any]


class RunIn(Schema):
    name: str = Field(min_length=1, max_length=120)
    config: dict[str, Any] = Field(default_factory=dict)
    cloned_from: UUID | None = None


class SteerIn(Schema):
    wanted: Literal["run", "pause", "stop", "cancel"]
    reason: str = ""


class AttemptOut(Schema):
    id: UUID
    number: int
    state: str
    state_reason: str
    wanted: str
    phase: str
    phase_progress: dict[str, Any]
    step: int
    version: int
    consumed_rollouts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class AttemptDetail(AttemptOut):
    config: dict[str, Any]
    provenance: dict[str, Any]


class RunOut(Schema):
    id: UUID
    name: str
    owner: str | None
    created_at: datetime
    attempt: AttemptOut
    model: str
    tasks: str
    harness: str
    num_live: int
    reward: float | None
    idle_share: float | None


class RunPage(Schema):
    items: list[RunOut]
    total: int


class RunDetail(Schema):
    id: UUID
    name: str
    owner: str | None
    notes: str
    cloned_from: UUID | None
    created_at: datetime
    attempts: list[AttemptDetail]


class MemberOut(Schema):
    group: UUID
    slot: int
    disposition: str
    reason: str
    advantage: float | None
    effective_reward: float | None
    staleness: int | None


class RolloutOut(Schema):
    id: UUID
    task: str
    family: str
    purpose: str
    state: str
    outcome: str
    reward: float | None
    error: str
    num_calls: int
    num_branches: int
    sampled_tokens: int
    longest_context: int
    oldest_version: int | None
    newest_version: int | None
    flags: list[Any]
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    member: MemberOut | None


class RolloutPage(Schema):
    items: list[RolloutOut]
    total: int
    page: int


class ForkIn(Schema):
    call_index: int
    count: int = 1


class RolloutDetail(RolloutOut):
    reward_parts: dict[str, Any]
    verifier_log: str
    diff: str
    harness_output: str
    sampling: dict[str, Any]
    budgets: dict[str, Any]


class ImageOut(Schema):
    id: UUID
    reference: str
    host: str
    origin: str
    state: str
    image_id: str
    digest: str
    size_bytes: int | None
    stand_ins: dict[str, str]
    error: str
    created_at: datetime
    started_at: datetime | None
    built_at: datetime | None
    last_used_at: datetime | None


class ImageDetail(ImageOut):
    log: str


class EgressRequestOut(Schema):
    at: datetime
    method: str
    host: str
    port: int
    verdict: str
    reason: str
    sent_bytes: int
    received_bytes: int
    duration_s: float | None


class NodeOut(Schema):
    index: int
    parent: int | None
    role: str
    branch_role: str
    sampled: bool
    trainable: bool
    message: dict[str, Any]
    token_ids: list[int]
    opener_length: int
    behaviour_logprobs: list[float] | None
    version_spans: list[Any]
    flags: list[Any]


class VersionOut(Schema):
    number: int
    step: int
    pinned: bool
    kept: bool = Field(description="Its weights are still on disk.")
    evaluation: dict[str, Any]
    published_at: datetime | None
    publish_s: float | None


class MetricOut(Schema):
    kind: str
    step: int
    key: str
    value: float
