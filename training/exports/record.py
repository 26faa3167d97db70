"""What an export says of a rollout: its branches as messages and tokens, and where they come from.

From:  Rollout, Node and Member rows.
To:    training.exports.formats.
Holds: the branches, and which tokens of them are in the loss, are those that training selects (training.selection);
       text is given back as it was (environments.text.restore_json).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from environments.models import Call, Node, Rollout
from environments.text import restore_json
from training.models import Member
from training.selection import Sample, build_record, select_samples

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A sample with its messages. trained: of each message, whether its tokens are in the loss."""

    sample: Sample
    nodes: list[int]
    messages: list[Message]
    trained: list[bool]
    version_spans: list[list[int]]
    """[[start, end, version], ...] over the branch's tokens."""


@dataclass(frozen=True, kw_only=True)
class RolloutRecord:
    rollout: Rollout
    member: Member | None
    branches: list[Branch]
    calls: list[Call] = field(default_factory=list)

    @property
    def main(self) -> Branch | None:
        """The longest branch: what the agent did, for formats that know one conversation."""
        return max(self.branches, key=lambda branch: branch.sample.num_tokens, default=None)

    @property
    def provenance(self) -> dict[str, Any]:
        """On every line: which rollout, of which task, by which harness, from which weights."""
        rollout = self.rollout
        attempt = self.member.group.attempt if self.member else None
        return {
            "rollout": str(rollout.pk),
            "task": f"{rollout.task.taskset.name}/{rollout.task.name}",
            "task_digest": rollout.task.digest,
            "harness": f"{rollout.harness.name}@{rollout.harness.version}",
            "model": rollout.model.name,
            "run": f"{attempt.run.name}/{attempt.number}" if attempt else None,
            "versions": [rollout.oldest_version, rollout.newest_version],
            "purpose": rollout.purpose,
            "outcome": rollout.outcome,
            "reward": rollout.reward,
        }


def load_record(rollout_id: UUID, *, max_branches: int) -> RolloutRecord | None:
    """None where the rollout is gone."""
    related = ("task__taskset", "harness", "model", "member__group__attempt__run")
    rollout = Rollout.objects.select_related(*related).filter(pk=rollout_id).first()
    if rollout is None:
        return None
    nodes = list(Node.objects.filter(rollout=rollout).order_by("index"))
    selection = select_samples(
        [build_record(node) for node in nodes], rollout_id=rollout.pk, max_samples=max_branches, purpose="supervised"
    )
    by_index = {node.index: node for node in nodes}
    return RolloutRecord(
        rollout=rollout,
        member=getattr(rollout, "member", None),
        branches=[build_branch(sample, by_index) for sample in selection.samples],
        calls=list(Call.objects.filter(rollout=rollout).order_by("index")),
    )


def build_branch(sample: Sample, by_index: dict[int, Node]) -> Branch:
    path = [by_index[piece.node] for piece in sample.pieces]
    spans = [
        [piece.start + start, piece.start + end, version]
        for piece, node in zip(sample.pieces, path, strict=True)
        for start, end, version in node.version_spans
    ]
    return Branch(
        sample=sample,
        nodes=[node.index for node in path],
        messages=[{"role": node.role, **restore_json(node.message)} for node in path],
        trained=[bool(sample.loss_mask[piece.start : piece.stop].any()) for piece in sample.pieces],
        version_spans=spans,
    )


def openai_message(message: Message) -> Message:
    """Canonical -> the chat form most trainers read: role, content, reasoning_content, tool_calls, tool_call_id."""
    out: Message = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("reasoning"):
        out["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        out["tool_calls"] = [
            {"id": c.get("id"), "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in message["tool_calls"]
        ]
    for key in ("tool_call_id", "name"):
        if message.get(key):
            out[key] = message[key]
    return out


def common_prefix(a: Sequence[Message], b: Sequence[Message]) -> int:
    """How many messages both begin with, without a message of the agent: from there on the two differ."""
    number = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        number += 1
    return number
