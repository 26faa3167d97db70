"""Rows as what REST gives; token arrays decoded."""

from array import array
from typing import Any

from environments.models import Node, Rollout
from gyre_web.runs.selectors import RunRow
from training.models import Attempt, Member, Run, Version

ATTEMPT = (
    "id", "number", "state", "state_reason", "wanted", "phase", "phase_progress", "step", "version",
    "consumed_rollouts", "created_at", "started_at", "ended_at",
)  # fmt: skip
ROLLOUT = (
    "id", "purpose", "state", "outcome", "reward", "error", "num_calls", "num_branches", "sampled_tokens",
    "longest_context", "oldest_version", "newest_version", "flags", "created_at", "started_at", "ended_at",
)  # fmt: skip


def attempt_out(attempt: Attempt) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in ATTEMPT}


def attempt_detail(attempt: Attempt) -> dict[str, Any]:
    return {**attempt_out(attempt), "config": attempt.config, "provenance": attempt.provenance}


def run_out(row: RunRow) -> dict[str, Any]:
    return {
        "id": row.run.pk,
        "name": row.run.name,
        "owner": row.run.owner.username if row.run.owner else None,
        "created_at": row.run.created_at,
        "attempt": attempt_out(row.attempt),
        "model": row.model,
        "tasks": row.tasks,
        "harness": row.harness,
        "num_live": row.num_live,
        "reward": row.reward,
        "idle_share": row.idle_share,
    }


def run_detail(run: Run, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "id": run.pk,
        "name": run.name,
        "owner": run.owner.username if run.owner else None,
        "notes": run.notes,
        "cloned_from": run.cloned_from_id,
        "created_at": run.created_at,
        "attempts": [attempt_detail(attempt) for attempt in attempts],
    }


def member_out(member: Member | None) -> dict[str, Any] | None:
    if member is None:
        return None
    names = ("slot", "disposition", "reason", "advantage", "effective_reward", "staleness")
    return {"group": member.group_id, **{name: getattr(member, name) for name in names}}


def rollout_out(rollout: Rollout) -> dict[str, Any]:
    return {
        **{name: getattr(rollout, name) for name in ROLLOUT},
        "task": rollout.task.name,
        "family": rollout.task.family,
        "member": member_out(getattr(rollout, "member", None)),
    }


def rollout_detail(rollout: Rollout) -> dict[str, Any]:
    names = ("reward_parts", "verifier_log", "diff", "harness_output", "sampling", "budgets")
    return {**rollout_out(rollout), **{name: getattr(rollout, name) for name in names}}


def node_out(node: Node) -> dict[str, Any]:
    names = (
        "index", "parent", "role", "branch_role", "sampled", "trainable", "message", "opener_length",
        "version_spans", "flags",
    )  # fmt: skip
    return {
        **{name: getattr(node, name) for name in names},
        "token_ids": list(array("I", bytes(node.ids))),
        "behaviour_logprobs": None
        if node.behaviour_logprobs is None
        else list(array("f", bytes(node.behaviour_logprobs))),
    }


def version_out(version: Version) -> dict[str, Any]:
    names = ("number", "step", "pinned", "evaluation", "published_at", "publish_s")
    return {**{name: getattr(version, name) for name in names}, "kept": bool(version.path)}
