"""Two rollouts side by side: what both began with, where they first differ, and what came of it.

From:  two Rollouts with their nodes.
To:    /compare, the pair judgements made there, REST.
Holds: the agent's own branch is the longest main path of each tree; a message counts as the same when its role, text
       and tool calls are equal; eight queries, whatever the lengths.
Never: writes.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from environments.models import Node, Rollout
from environments.text import restore_json
from gyre_web.watch.selectors import load_member
from training.models import Member

CUT_CHARS = 6000
MOST_DIFF_LINES = 2000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One message of a branch. index: of its node."""

    index: int
    role: str
    text: str
    reasoning: str
    calls: list[dict[str, Any]]
    sampled: bool
    num_tokens: int
    cut: int = 0
    """Characters left out."""

    @property
    def sameness(self) -> tuple[Any, ...]:
        return (self.role, self.text, self.cut, [(call.get("name"), call.get("arguments")) for call in self.calls])


@dataclass(frozen=True, kw_only=True)
class Side:
    rollout: Rollout
    member: Member | None
    entries: list[Entry]

    @property
    def reward(self) -> float | None:
        return self.member.reward if self.member else self.rollout.reward

    @property
    def num_turns(self) -> int:
        return sum(entry.sampled for entry in self.entries)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Entries at the same place; None where one side has ended. first: the first different action."""

    a: Entry | None
    b: Entry | None
    same: bool
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class DiffLine:
    kind: str
    """add, remove, same, place"""
    text: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    a: Side
    b: Side
    common: list[Entry]
    rows: list[Row]
    parts: list[tuple[str, Any, Any]]
    """(name, a, b) of every reward part of either."""
    patch: list[DiffLine]
    """The work product of b against that of a."""
    verifier: list[DiffLine]

    @property
    def same_task(self) -> bool:
        return self.a.rollout.task_id == self.b.rollout.task_id


def compare(a: Rollout, b: Rollout) -> Comparison:
    one, other = load_side(a), load_side(b)
    length = common_length(one.entries, other.entries)
    return Comparison(
        a=one,
        b=other,
        common=one.entries[:length],
        rows=align(one.entries[length:], other.entries[length:]),
        parts=reward_parts(a, b),
        patch=line_diff(a.diff, b.diff),
        verifier=line_diff(a.verifier_log, b.verifier_log),
    )


def load_side(rollout: Rollout) -> Side:
    return Side(rollout=rollout, member=load_member(rollout), entries=load_entries(rollout))


def load_entries(rollout: Rollout) -> list[Entry]:
    """The messages of the main branch that has most tokens."""
    fields = ("index", "parent", "depth_tokens", "branch_role", "role", "sampled", "opener_length", "ids", "message")
    nodes = {node.index: node for node in Node.objects.filter(rollout=rollout).only("rollout", *fields)}
    mains = [node for node in nodes.values() if node.branch_role == Node.BranchRole.MAIN] or list(nodes.values())
    if not mains:
        return []
    place: int | None = max(mains, key=lambda node: (node.depth_tokens + len(node.ids) // 4, node.index)).index
    path: list[Node] = []
    while place is not None and place in nodes:
        path.append(nodes[place])
        place = nodes[place].parent
    return [build_entry(node) for node in reversed(path)]


def build_entry(node: Node) -> Entry:
    message = restore_json(node.message)
    text = str(message.get("content") or "")
    return Entry(
        index=node.index,
        role=node.role,
        text=text[:CUT_CHARS],
        cut=max(0, len(text) - CUT_CHARS),
        reasoning=str(message.get("reasoning") or "")[:CUT_CHARS],
        calls=list(message.get("tool_calls") or []),
        sampled=node.sampled,
        num_tokens=len(bytes(node.ids)) // 4,
    )


def common_length(a: Sequence[Entry], b: Sequence[Entry]) -> int:
    number = 0
    for one, other in zip(a, b, strict=False):
        if one.sameness != other.sameness:
            break
        number += 1
    return number


def align(a: Sequence[Entry], b: Sequence[Entry]) -> list[Row]:
    """Place by place: after the first difference the two are different stories, told beside each other."""
    rows = []
    for number, (one, other) in enumerate(zip_longest(a, b)):
        same = one is not None and other is not None and one.sameness == other.sameness
        rows.append(Row(a=one, b=other, same=same, first=number == 0))
    return rows


def reward_parts(a: Rollout, b: Rollout) -> list[tuple[str, Any, Any]]:
    names = list(dict.fromkeys([*a.reward_parts, *b.reward_parts]))
    return [(name, a.reward_parts.get(name), b.reward_parts.get(name)) for name in names]


def line_diff(a: str, b: str) -> list[DiffLine]:
    """Unified, without file heads; empty where both are the same."""
    kinds = {"+": "add", "-": "remove", " ": "same", "@": "place"}
    lines = list(difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=3))[2:]
    found = [DiffLine(kind=kinds.get(line[:1], "same"), text=line) for line in lines[:MOST_DIFF_LINES]]
    if len(lines) > MOST_DIFF_LINES:
        found.append(DiffLine(kind="place", text=f"... {len(lines) - MOST_DIFF_LINES} more lines"))
    return found
