"""Rows of a small world for the watch and review tests: people, a rollout with a tree, a member in a group."""

import itertools
import struct
import uuid
from typing import Any

from django.utils import timezone

from environments.models import Call, Harness, Model, Node, Rollout, Session, Task, TaskSet
from gyre_web.accounts.models import User
from training.models import Attempt, Group, Member, Run

numbers = itertools.count(1)


def make_user(role: str = "viewer", name: str = "") -> User:
    user = User(username=name or f"{role}-{next(numbers)}", role=role)
    user.set_password("a long password")
    user.save()
    return user


def make_task() -> Task:
    taskset, _ = TaskSet.objects.get_or_create(
        name="set", defaults={"source": "generated:x", "digest": "0", "directory": "/nowhere"}
    )
    return Task.objects.create(
        taskset=taskset, name=f"create-file-{next(numbers)}", directory="/nowhere", instruction="Create hello.txt.",
        digest="0", agent_timeout_s=60, verifier_timeout_s=60,
    )  # fmt: skip


def make_rollout(**fields: Any) -> Rollout:
    model, _ = Model.objects.get_or_create(
        name="bytes", defaults={"path": "/nowhere", "renderer": "scripted", "context_length": 100_000}
    )
    harness, _ = Harness.objects.get_or_create(name="mini", defaults={"program": "mini-swe-agent", "version": "2.4.6"})
    now = timezone.now()
    values: dict[str, Any] = {
        "task": None,
        "pool": "pool",
        "state": "running",
        "started_at": now,
        "last_activity_at": now,
    }
    values |= fields
    values["task"] = values["task"] or make_task()
    return Rollout.objects.create(model=model, harness=harness, **values)


def make_session(rollout: Rollout) -> Session:
    return Session.objects.create(rollout=rollout)


def make_node(
    rollout: Rollout,
    index: int,
    parent: int | None,
    message: dict[str, Any],
    *,
    ids: list[int],
    sampled: bool = False,
    **fields: Any,
) -> Node:
    opener = fields.get("opener_length", 1 if sampled else 0)
    logprobs = fields.pop("logprobs", [-0.5] * (len(ids) - opener)) if sampled else None
    return Node.objects.create(
        **{
            "rollout": rollout, "index": index, "parent": parent, "depth_tokens": fields.pop("depth_tokens", 10 * index),
            "key": b"k", "role": message["role"], "sampled": sampled, "trainable": sampled, "opener_length": opener,
            "ids": struct.pack(f"<{len(ids)}I", *ids),
            "behaviour_logprobs": None if logprobs is None else struct.pack(f"<{len(logprobs)}f", *logprobs),
            "version_spans": [[opener, len(ids), 3]] if sampled else [], "message": message, **fields,
        }
    )  # fmt: skip


def make_call(rollout: Rollout, session: Session, index: int, **fields: Any) -> Call:
    return Call.objects.create(
        rollout=rollout, session=session, index=index, dialect="chat", digest=b"d", started_at=timezone.now(), **fields
    )


def bytes_ids(text: str) -> list[int]:
    return list(text.encode())


def make_member(rollout: Rollout, **fields: Any) -> Member:
    """In an open group of a run of its own."""
    run = Run.objects.create(name=f"run {uuid.uuid4()}")
    attempt = Attempt.objects.create(run=run, number=1, config={})
    group = Group.objects.create(attempt=attempt, index=1, task=rollout.task)
    return Member.objects.create(group=group, rollout=rollout, slot=0, **fields)


def node_event(node: Node, call: Call | None = None) -> tuple[str, dict[str, Any]]:
    """As the gateway appends it after the commit."""
    return "node", {
        "index": node.index, "parent": node.parent, "role": node.role, "branch_role": node.branch_role,
        "sampled": node.sampled, "trainable": node.trainable, "message": node.message,
        "num_tokens": len(node.ids) // 4, "depth_tokens": node.depth_tokens, "opener_length": node.opener_length,
        "version_spans": node.version_spans, "flags": node.flags, "call": str(call.pk) if call else None,
    }  # fmt: skip


def call_event(call: Call) -> tuple[str, dict[str, Any]]:
    names = (
        "index",
        "state",
        "prompt_node",
        "num_prompt_tokens",
        "finish_reason",
        "error",
        "engines",
        "first_token_s",
        "duration_s",
        "held_s",
    )
    return "call", {"call": str(call.pk), "hold_reason": None, **{name: getattr(call, name) for name in names}}


def tokens_event(call: Call, parent: int, start: int, text: str, version: int = 3) -> tuple[str, dict[str, Any]]:
    ids = bytes_ids(text)
    return "tokens", {
        "call": str(call.pk), "parent": parent, "start": start, "ids": ids, "texts": list(text),
        "logprobs": [-0.25] * len(ids), "version": version,
    }  # fmt: skip
