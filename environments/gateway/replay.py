"""Answer a new session from the record, as long as it asks what an earlier one asked (docs/explanation/tree.md).

From:  sessions.py, for a session that is not its rollout's first, or whose rollout was forked; requests in calls.py.
To:    the recorded call that a request repeats, and the aliases by which its history is known as the recorded one.
Holds: a recorded call is replayed at most once a session; replayed nodes are the old nodes, never new samples. Texts
       that differ (times, process ids) keep the recorded text in the prompt and count as `tool-result`; other turns,
       other call ids or another exit code are another shape, and go live.
Never: touches an engine or the database.

Shape of a history: for each turn its role; of an answer the call ids of ours, or its text where it has none; of what
follows the first answer the exit code that it reports.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from environments.gateway.messages import Request, chain_key, digest_message, digest_root, text_of
from environments.gateway.record import CallRow, NodeRow
from environments.gateway.roles import find_role
from environments.gateway.tree import Difference, Tree
from environments.harnesses.base import RoleRule

EXIT_CODE = re.compile(r"(?:\bexit(?:ed)?(?: with)?(?: code| status)?|return_?code|exit_code)\W{0,4}(-?\d+)", re.I)
EXIT_CODE_CHARS = 4000
"""Of each end of a result: where programs report it."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A request that repeats a recorded call."""

    row: CallRow
    aliases: Mapping[bytes, int]
    """Key of the request's history up to a message -> the node that stands for it."""
    differences: Sequence[Difference]
    chain: bytes


@dataclass(eq=False, kw_only=True)
class Replay:
    """What one session can still be answered from the record."""

    by_shape: Mapping[bytes, Sequence[CallRow]]
    used: set[UUID] = field(default_factory=set)

    def find(
        self, tree: Tree, request: Request, *, instruction: str, main_system: str, rules: Sequence[RoleRule] = ()
    ) -> Repeat | None:
        shape, is_answered = b"", False
        for message in request.messages:
            shape = next_shape(shape, message, is_answered=is_answered)
            is_answered = is_answered or message["role"] == "assistant"
        rows = [row for row in self.by_shape.get(shape, ()) if row.id not in self.used]
        if not is_answered:  # a title and the first turn have one shape
            known: dict[str, Any] = {
                "instruction": instruction,
                "main_system": main_system,
                "rules": rules,
                "parent_role": None,
            }
            roles = {find_role(request, main_exists=is_there, **known) for is_there in (False, True)}
            rows = [row for row in rows if tree.nodes[row.prompt_node or 0].branch_role in roles]
        repeats = [repeat for row in rows if (repeat := build_repeat(tree, request, row)) is not None]
        repeats.sort(
            key=lambda repeat: (not is_same_agent(tree, repeat, request), len(repeat.aliases), repeat.row.index)
        )
        if not repeats:
            return None
        self.used.add(repeats[0].row.id)
        return repeats[0]


def build_replay(nodes: Sequence[NodeRow], calls: Sequence[CallRow], used: set[UUID]) -> Replay:
    """nodes: the rollout's, by index. calls: those that may be replayed, in order. used: replayed already."""
    shapes: dict[int, tuple[bytes, bool]] = {}
    for node in nodes:
        before, is_answered = shapes[node.parent] if node.parent is not None else (b"", False)
        shape = next_shape(before, node.message, is_answered=is_answered)
        shapes[node.index] = (shape, is_answered or node.role == "assistant")
    by_shape: dict[bytes, list[CallRow]] = {}
    for call in calls:
        if call.prompt_node is not None and call.answer_node is not None and call.state == "completed":
            by_shape.setdefault(shapes[call.prompt_node][0], []).append(call)
    return Replay(by_shape=by_shape, used=used)


def next_shape(before: bytes, message: Mapping[str, Any], *, is_answered: bool) -> bytes:
    role = message["role"]
    parts = [role]
    if role == "assistant":
        parts += [call["id"] for call in message.get("tool_calls") or ()] or [text_of(message.get("content")).strip()]
    elif is_answered:
        parts += [exit_code(text_of(message.get("content"))), message.get("tool_call_id") or ""]
    raw = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(before + raw, digest_size=16).digest()


def exit_code(text: str) -> str:
    """The exit code that a tool's result reports, "" for none."""
    ends = text if len(text) <= 2 * EXIT_CODE_CHARS else text[:EXIT_CODE_CHARS] + "\n" + text[-EXIT_CODE_CHARS:]
    match = EXIT_CODE.search(ends)
    return match[1] if match else ""


def build_repeat(tree: Tree, request: Request, row: CallRow) -> Repeat | None:
    path = tree.path(row.prompt_node)
    if len(path) != len(request.messages):
        return None
    key, aliases, differences = digest_root(request.tools), dict[bytes, int](), list[Difference]()
    is_answered = False
    for place, (node, message) in enumerate(zip(path, request.messages, strict=True)):
        told = chain_key(key, digest_message(message, tree.call_ids, tree.volatile))
        key = node.key
        if told != node.key:
            aliases[told] = node.index
            if node.role != "assistant" and place:
                kind = "tool-result" if is_answered else "volatile"
                differences.append(Difference(kind=kind, message=place, node=node.index))
        is_answered = is_answered or node.role == "assistant"
    return Repeat(row=row, aliases=aliases, differences=differences, chain=key)


def is_same_agent(tree: Tree, repeat: Repeat, request: Request) -> bool:
    node = tree.nodes[repeat.row.answer_node or 0]
    return bool(node.agent) == bool(request.agent)
