"""The trajectory tree of one rollout: which known node a request continues, and what it adds.

From:  requests in canonical messages; nodes loaded from the record.
To:    Plan: new context nodes with their ids; the prompt of a call is the path's ids and the opener.
Holds: concat(ids along a branch) is exactly what the engine saw and produced: sampled ids are never encoded again,
       and a message's ids are added only where the renderer proves that the prefix stays.
Never: touches the database or an engine.
Cost:  one digest a message of the request, no re-tokenization of what is known; memory in new tokens.

Worked example. Known: 0 system, 1 user, 2 answer (sampled). The request is [system, user, answer, tool result]:
its keys match nodes 0..2, `extend` gives the tool result's ids, node 3 is added under 2. Had the harness dropped the
answer ([system, user, user]), nodes 0..1 match and the second user message becomes node 3 under 1: a branch.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from environments.gateway.messages import Message, Request, chain_key, digest_message, digest_root, renderable
from environments.rendering.protocol import Renderer

TAIL_IDS = 64
"""Ids before the last answer that a renderer gets too; it needs at most the border."""
IdArray = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(slots=True, kw_only=True)
class TreeNode:
    index: int
    parent: int | None
    depth_tokens: int
    key: bytes
    role: str
    branch_role: str
    sampled: bool
    ids: bytes
    """Little-endian uint32, the opener included."""
    opener_length: int = 0
    message: Message | None = None
    """Kept for sampled nodes only (extending needs it)."""
    trainable: bool = False
    agent: str = ""
    oldest_kv_version: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.ids) // 4

    @property
    def end_tokens(self) -> int:
        return self.depth_tokens + self.num_tokens


@dataclass(frozen=True, kw_only=True)
class Addition:
    key: bytes
    message: Message
    ids: bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a request adds: `additions`, one below the other, under node `parent` (None: a new root)."""

    parent: int | None
    additions: list[Addition]
    opener: list[int]
    drift: Counter[str] = field(default_factory=Counter)
    chain: bytes = b""
    """Key of the whole history: equal for requests that say the same."""


class Tree:
    def __init__(self, volatile: Sequence[re.Pattern[str]] = ()) -> None:
        self.nodes: list[TreeNode] = []
        self.volatile = volatile
        self.call_ids: dict[str, int] = {}
        """Tool-call id that we issued -> its node."""
        self.num_branches = 0
        self.distinct_tokens = 0
        self._by_key: dict[bytes, list[int]] = {}
        self._has_child: set[int] = set()
        self._drifted: set[tuple[int, str]] = set()
        """(node, class) already counted: the same rewritten turn comes again with every request."""

    def add(self, node: TreeNode) -> None:
        assert node.index == len(self.nodes), "node indices are dense"
        self.nodes.append(node)
        self._by_key.setdefault(node.key, []).append(node.index)
        if node.parent is None or node.parent in self._has_child:
            self.num_branches += 1
        if node.parent is not None:
            self._has_child.add(node.parent)
        self.distinct_tokens += node.num_tokens
        for call in (node.message or {}).get("tool_calls") or () if node.sampled else ():
            self.call_ids[call["id"]] = node.index

    def path(self, index: int | None) -> list[TreeNode]:
        """Root first."""
        path = []
        while index is not None:
            path.append(self.nodes[index])
            index = self.nodes[index].parent
        return path[::-1]

    def prompt_ids(self, index: int | None, opener: Sequence[int]) -> IdArray:
        pieces = [np.frombuffer(node.ids, dtype="<u4") for node in self.path(index)]
        return np.concatenate([*pieces, np.array(opener, dtype="<u4")])

    def answer_key(self, parent: int, message: Message) -> bytes:
        """Key of a sampled answer under `parent`; its own call ids count as known."""
        ids = {call["id"] for call in message.get("tool_calls") or ()}
        return chain_key(self.nodes[parent].key, digest_message(message, ids, ()))

    def plan(self, request: Request, renderer: Renderer) -> Plan:
        keys = self._keys(request)
        match = self._deepest(keys, request.agent)
        path = self.path(match)
        drift = self._drift(path, request.messages)
        messages = renderable(request.messages)
        if len(path) == len(messages) and path and path[-1].sampled:
            path = path[:-1]  # a history that ends with our answer: only as context can it be closed
        kept, added_ids = self._render(path, messages, request.tools, renderer)
        if kept < len(path):
            drift["template"] += 1
        elif path and kept < len(messages) and path[-1].index in self._has_child:
            drift["edit"] += 1
        additions = [
            Addition(key=keys[kept + i], message=request.messages[kept + i], ids=pack(ids))
            for i, ids in enumerate(added_ids)
        ]
        return Plan(
            parent=path[kept - 1].index if kept else None,
            additions=additions,
            opener=renderer.opener(messages, request.tools),
            drift=drift,
            chain=keys[-1] if keys else b"",
        )

    def count(self, request: Request, renderer: Renderer) -> int:
        """Tokens of the prompt that this request would have. Nothing is kept."""
        drifted = set(self._drifted)
        plan = self.plan(request, renderer)
        self._drifted = drifted
        known = self.nodes[plan.parent].end_tokens if plan.parent is not None else 0
        return known + sum(len(addition.ids) // 4 for addition in plan.additions) + len(plan.opener)

    def _keys(self, request: Request) -> list[bytes]:
        key = digest_root(request.tools)
        keys = []
        for message in request.messages:
            key = chain_key(key, digest_message(message, self.call_ids, self.volatile))
            keys.append(key)
        return keys

    def _deepest(self, keys: Sequence[bytes], agent: str) -> int | None:
        """A key names its whole history, so the last known key is the deepest match.

        Twins: of the same agent, else sampled rather than context, else the latest.
        """
        found: list[int] = []
        for key in keys:
            twins = self._by_key.get(key)
            if not twins:
                break
            found = twins
        return max(found, key=lambda i: (self.nodes[i].agent == agent, self.nodes[i].sampled, i), default=None)

    def _render(
        self, path: Sequence[TreeNode], messages: list[Message], tools: list[dict[str, Any]], renderer: Renderer
    ) -> tuple[int, list[list[int]]]:
        """(how many nodes of the path keep, ids of each message after them)."""
        last = next((i for i in range(len(path) - 1, -1, -1) if path[i].sampled), None)
        if last is not None:
            before = unpack(path[last - 1].ids)[-TAIL_IDS:] if last else []
            tail = before + unpack(path[last].ids)
            extension = renderer.extend(tail, path[last].message or {}, messages[last + 1 :], tools)
            if extension is not None:
                same = count_equal([node.ids for node in path[last + 1 :]], map(pack, extension))
                return last + 1 + same, extension[same:]
        return match_prefix(path, renderer.render(messages, tools))

    def _drift(self, path: Sequence[TreeNode], messages: Sequence[Message]) -> Counter[str]:
        """Differences that the matching forgave in our own answers, by class; each counted once a node."""
        found: list[tuple[int, str]] = []
        for node, echoed in zip(path, messages, strict=False):
            ours = node.message
            if not node.sampled or ours is None:
                continue
            our_calls, their_calls = ours.get("tool_calls") or [], echoed.get("tool_calls") or []
            if [(c["name"], c["arguments"]) for c in our_calls] != [(c["name"], c["arguments"]) for c in their_calls]:
                found.append((node.index, "arguments"))
            if (ours.get("content") or "") != (echoed.get("content") or "") or (
                ours.get("reasoning") and ours["reasoning"] != echoed.get("reasoning")
            ):
                found.append((node.index, "shape"))
        new = [item for item in found if item not in self._drifted]
        self._drifted.update(new)
        return Counter(kind for _, kind in new)


def match_prefix(path: Sequence[TreeNode], rendered: Sequence[Sequence[int]]) -> tuple[int, list[list[int]]]:
    """Keep the longest part of the path whose ids are an exact prefix of the full rendering.

    A sampled node may end before its message's rendering does (the closing ids): those go to the next message.
    """
    flat = [i for ids in rendered for i in ids]
    borders = [0]
    for ids in rendered:
        borders.append(borders[-1] + len(ids))
    kept, position = 0, 0
    for node in path:
        ids = unpack(node.ids)
        if flat[position : position + len(ids)] != ids or position + len(ids) > borders[kept + 1]:
            break
        kept, position = kept + 1, position + len(ids)
    while kept and kept < len(rendered) and position > borders[kept + 1]:
        kept, position = kept - 1, position - path[kept - 1].num_tokens
    if kept == len(rendered):
        return kept, []
    first = flat[position : borders[kept + 1]]
    return kept, [first, *(list(ids) for ids in rendered[kept + 1 :])]


def count_equal(known: Sequence[bytes], given: Iterable[bytes]) -> int:
    count = 0
    for ours, theirs in zip(known, given, strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def pack(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


def unpack(ids: bytes) -> list[int]:
    return np.frombuffer(ids, dtype="<u4").tolist()
