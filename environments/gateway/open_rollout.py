"""What one gateway keeps in memory of a rollout whose session it holds: its tree, its calls, its counters.

From:  sessions.py builds it from the record; calls.py and generation.py change it.
To:    delivery.py reads LiveCall.
Holds: all of it can be built again from Postgres and the live log; `lock` orders changes of the tree, never sampling.
Never: touches the network.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from environments.config import Budgets, Sampling
from environments.gateway.dialects import Answer
from environments.gateway.messages import Message, tool_call_id
from environments.gateway.record import CallRow, Counters, NodeRow
from environments.gateway.replay import Replay
from environments.gateway.signal import Signal
from environments.gateway.tree import Tree, unpack
from environments.harnesses.base import Habits
from environments.rendering.protocol import Renderer

KEPT_CALLS = 32
"""Calls of a rollout kept in memory after their end, for retries and reconnects."""


@dataclass(eq=False, kw_only=True)
class LiveCall:
    """A call under way, or done and perhaps still being delivered."""

    row: CallRow
    opener: list[int]
    max_tokens: int
    opening: Sequence[NodeRow] = ()
    """Nodes written when it was opened, until its end is durable: a crash of Postgres may take them."""
    started: float = field(default_factory=time.monotonic)
    agent: str = ""
    branch_role: str = "main"
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    """None: an answer without logprobs (an expert's)."""
    versions: list[int] = field(default_factory=list)
    journaled: int = 0
    """So many sampled tokens are in the live log, so a new gateway would send the same bytes."""
    answer: Answer | None = None
    """Committed."""
    failure: str = ""
    task: asyncio.Task[None] | None = None
    changed: Signal = field(default_factory=Signal)
    readers: int = 0
    is_committing: bool = False
    was_delivered: bool = False
    abort_timer: asyncio.TimerHandle | None = None
    keep_alives: dict[str, list[int]] = field(default_factory=dict)
    """Of each exchange (relay call id): positions in the body at which a keep-alive was sent."""

    @property
    def id(self) -> UUID:
        return self.row.id

    @property
    def is_open(self) -> bool:
        return self.row.state == "open"

    def update(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self.row, name, value)


@dataclass(eq=False, kw_only=True)
class OpenRollout:
    id: UUID
    pool: str
    sampling: Sampling
    budgets: Budgets
    max_context: int
    model_name: str
    renderer: Renderer
    delivery: str
    program: str
    instruction: str
    task_directory: str
    ending: str
    tree: Tree
    habits: Habits = field(default_factory=Habits)
    """Of the harness's program."""
    drift: Counter[str] = field(default_factory=Counter)
    num_calls: int = 0
    next_index: int = 0
    sampled_tokens: int = 0
    longest_context: int = 0
    oldest_version: int | None = None
    newest_version: int | None = None
    main_system: str = ""
    calls: dict[UUID, LiveCall] = field(default_factory=dict)
    """Under way or being delivered; and the last ones, for retries."""
    by_relay: dict[tuple[UUID, str], LiveCall] = field(default_factory=dict)
    by_digest: dict[bytes, LiveCall] = field(default_factory=dict)
    by_answer: dict[int, LiveCall] = field(default_factory=dict)
    """Answer node -> its call, while that is in memory."""
    replays: dict[UUID, Replay] = field(default_factory=dict)
    """Session -> what it can still be answered from the record."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_lost: bool = False
    last_used: float = field(default_factory=time.monotonic)

    def counters(self) -> Counters:
        return Counters(
            num_calls=self.num_calls,
            num_branches=self.tree.num_branches,
            sampled_tokens=self.sampled_tokens,
            distinct_tokens=self.tree.distinct_tokens,
            longest_context=self.longest_context,
            oldest_version=self.oldest_version,
            newest_version=self.newest_version,
            drift=dict(self.drift),
        )

    def remember(self, call: LiveCall) -> None:
        self.calls[call.id] = call
        self.by_digest[call.row.digest] = call
        if call.row.relay_call:
            self.by_relay[call.row.session_id, call.row.relay_call] = call
        if call.row.answer_node is not None:
            self.by_answer[call.row.answer_node] = call
            self.tree.answers[call.id.hex] = call.row.answer_node

    def forget(self, call: LiveCall) -> None:
        self.calls.pop(call.id, None)
        self.by_digest = {key: value for key, value in self.by_digest.items() if value is not call}
        self.by_relay = {key: value for key, value in self.by_relay.items() if value is not call}
        self.by_answer = {key: value for key, value in self.by_answer.items() if value is not call}


def build_answer(rollout: OpenRollout, call: LiveCall) -> Answer:
    """The canonical answer that the sampled ids say, with call ids of ours. A function of the ids and the call's id."""
    message: Message = rollout.renderer.parse(call.sampled)
    finish = call.row.finish_reason
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {**tool_call, "id": tool_call_id(call.id.hex, position)}
            for position, tool_call in enumerate(message["tool_calls"])
        ]
        finish = "tool_calls" if finish == "stop" else finish
    return Answer(
        message=message,
        finish_reason=finish,
        num_prompt_tokens=call.row.num_prompt_tokens,
        num_sampled_tokens=len(call.sampled),
        num_cached_tokens=call.row.num_cached_tokens,
    )


def restore_done(rollout: OpenRollout, row: CallRow, answer_node: int) -> LiveCall:
    """A call that has ended, from its row and its answer's node."""
    node = rollout.tree.nodes[answer_node]
    ids = unpack(node.ids)
    call = LiveCall(
        row=row,
        opener=ids[: node.opener_length],
        max_tokens=0,
        sampled=ids[node.opener_length :],
        keep_alives=row.imposed.get("keep_alives", {}),
        was_delivered=True,
    )
    call.journaled = len(call.sampled)
    call.answer = build_answer(rollout, call)
    return call


def restore_replayed(rollout: OpenRollout, row: CallRow, source: CallRow) -> LiveCall:
    """A call that was answered with the record of `source`: its text and call ids, under an id of its own."""
    assert source.answer_node is not None
    call = restore_done(rollout, source, source.answer_node)
    call.row = row
    rollout.tree.answers[row.id.hex] = source.answer_node
    rollout.tree.aliases.update({bytes.fromhex(key): node for key, node in row.imposed.get("aliases", {}).items()})
    return call


def build_spans(versions: list[int], opener_length: int) -> list[list[int]]:
    """[[start, end, version], ...] over a node's ids: the opener belongs to nobody.

    versions [6, 6, 7] after an opener of 1 -> [[1, 3, 6], [3, 4, 7]].
    """
    spans: list[list[int]] = []
    for position, version in enumerate(versions, opener_length):
        if spans and spans[-1][2] == version:
            spans[-1][1] = position + 1
        else:
            spans.append([position, position + 1, version])
    return spans


def seconds_since(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())
