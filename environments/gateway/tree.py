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

from environments.gateway.messages import Message, Request, chain_key, digest_message, digest_root, renderable, text_of
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
    """Kept for assistant nodes only (extending and splitting merged turns need it)."""
    trainable: bool = False
    agent: str = ""
    oldest_kv_version: int | None = None
    exact: bytes = b""
    """See Addition.exact."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids) // 4

    @property
    def end_tokens(self) -> int:
        return self.depth_tokens + self.num_tokens


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in a request's history that is not as it was seen or sampled (docs/explanation/tree.md)."""

    kind: str
    """arguments | shape | volatile | edit | template | reused | tool-result"""
    message: int
    """Its place in the request's canonical messages."""
    node: int | None
    """The node that it differs from; of `edit`, the one whose continuation was left."""

    def to_json(self) -> list[Any]:
        return [self.kind, self.message, self.node]


@dataclass(frozen=True, kw_only=True)
class Addition:
    key: bytes
    message: Message
    """As rendered: turns of ours in the sampled words."""
    ids: bytes
    exact: bytes = b""
    """Digest with its volatile spans, where the model has such patterns."""
    flags: tuple[str, ...] = ()
    """reused:N, edited:N: the turn of ours (node N) that is context here; it is trained where it was sampled."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a request adds: `additions`, one below the other, under node `parent` (None: a new root)."""

    parent: int | None
    additions: list[Addition]
    opener: list[int]
    differences: list[Difference] = field(default_factory=list)
    """Those not counted yet."""
    chain: bytes = b""
    """Key of the whole history: equal for requests that say the same."""

    @property
    def drift(self) -> Counter[str]:
        return Counter(difference.kind for difference in self.differences)


@dataclass(kw_only=True)
class Walk:
    """A request's messages down the tree, as far as they are known."""

    messages: list[Message] = field(default_factory=list)
    """A turn into which the harness merged two of the tree's is two again."""
    keys: list[bytes] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    """Nodes with the last known key."""
    merged: list[int] = field(default_factory=list)
    """Places in `messages` at which a merged turn was split."""


class Tree:
    def __init__(self, volatile: Sequence[re.Pattern[str]] = ()) -> None:
        self.nodes: list[TreeNode] = []
        self.volatile = volatile
        self.call_ids: dict[str, int] = {}
        """Tool-call id that we issued -> its node."""
        self.answers: dict[str, int] = {}
        """Call (hex digits, as sealed reasoning names it) -> its answer's node."""
        self.aliases: dict[bytes, int] = {}
        """Key of a replayed history whose text differs -> the recorded node that stands for it."""
        self.num_branches = 0
        self.distinct_tokens = 0
        self._by_key: dict[bytes, list[int]] = {}
        self._children: dict[int, list[int]] = {}
        self._drifted: set[tuple[int, str]] = set()
        """(node, class) already counted: the same rewritten turn comes again with every request."""

    def add(self, node: TreeNode) -> None:
        assert node.index == len(self.nodes), "node indices are dense"
        self.nodes.append(node)
        self._by_key.setdefault(node.key, []).append(node.index)
        if node.parent is None or node.parent in self._children:
            self.num_branches += 1
        if node.parent is not None:
            self._children.setdefault(node.parent, []).append(node.index)
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
        """Nothing of the tree is changed; `take` counts the differences when the call is opened."""
        walk = self._walk(request)
        path = self.path(self._best(walk.found, request.agent))
        differences = self._forgiven(path, walk)
        origins = [self._origin(message) for message in walk.messages]
        told = [self._restore(path, i, message, origins[i]) for i, message in enumerate(walk.messages)]
        messages = renderable(told)
        if len(path) == len(messages) and path and path[-1].sampled:
            path = path[:-1]  # a history that ends with our answer: only as context can it be closed
        kept, added_ids = self._render(path, messages, request.tools, renderer)
        differences += self._diverged(path, kept, walk, origins)
        additions = []
        for place, ids in enumerate(added_ids, kept):
            message = told[place]
            exact = exact_digest(message) if self.volatile and message["role"] != "assistant" else b""
            flags = self._source_flags(path, place, message, origins[place])
            additions.append(Addition(key=walk.keys[place], message=message, ids=pack(ids), exact=exact, flags=flags))
        return Plan(
            parent=path[kept - 1].index if kept else None,
            additions=additions,
            opener=renderer.opener(messages, request.tools),
            differences=self.uncounted(differences),
            chain=walk.keys[-1] if walk.keys else b"",
        )

    def uncounted(self, differences: Iterable[Difference]) -> list[Difference]:
        return [d for d in differences if d.node is None or (d.node, d.kind) not in self._drifted]

    def take(self, plan: Plan) -> None:
        """A call with this plan was opened."""
        self._drifted.update((d.node, d.kind) for d in plan.differences if d.node is not None)

    def count(self, request: Request, renderer: Renderer) -> int:
        """Tokens of the prompt that this request would have."""
        plan = self.plan(request, renderer)
        known = self.nodes[plan.parent].end_tokens if plan.parent is not None else 0
        return known + sum(len(addition.ids) // 4 for addition in plan.additions) + len(plan.opener)

    def _walk(self, request: Request) -> Walk:
        walk = Walk()
        key, is_known = digest_root(request.tools), True
        for message in request.messages:
            pieces = [message]
            if is_known and message["role"] == "assistant" and walk.found:
                if self._key(key, message) not in self._by_key:
                    pieces = self._unmerge(walk.found, message)
                if len(pieces) > 1:
                    walk.merged.append(len(walk.messages))
            for piece in pieces:
                key = self._key(key, piece)
                if is_known and key not in self._by_key and key in self.aliases:
                    key = self.nodes[self.aliases[key]].key
                twins = self._by_key.get(key) if is_known else None
                is_known = twins is not None
                walk.found = twins or walk.found
                walk.keys.append(key)
                walk.messages.append(piece)
        return walk

    def _key(self, parent_key: bytes, message: Message) -> bytes:
        return chain_key(parent_key, digest_message(message, self.call_ids, self.volatile))

    def _unmerge(self, found: Sequence[int], message: Message) -> list[Message]:
        """[first, second] where the tree has both and the harness wrote them as one (qwen-code does, after a
        compaction that ended with an assistant message); else [message]."""
        text, calls = text_of(message.get("content")), call_ids_of(message)
        for first in (child for node in found for child in self._children.get(node, ())):
            begin = text_of((self.nodes[first].message or {}).get("content"))
            if self.nodes[first].role != "assistant" or not begin or not text.startswith(begin):
                continue
            for second in self._children.get(first, ()):
                answer = self.nodes[second].message
                if not self.nodes[second].sampled or answer is None or call_ids_of(answer) != calls:
                    continue
                if text_of(answer.get("content")).strip() == text[len(begin) :].strip():
                    return [dict(self.nodes[first].message or {}), {**message, "content": text[len(begin) :]}]
        return [message]

    def _best(self, found: Sequence[int], agent: str) -> int | None:
        """Of twins: of the same agent, else sampled rather than context, else the latest."""
        return max(found, key=lambda i: (self.nodes[i].agent == agent, self.nodes[i].sampled, i), default=None)

    def _origin(self, message: Message) -> int | None:
        """The sampled node that an echoed turn is from, by the ids of ours that it carries."""
        if message["role"] != "assistant":
            return None
        for call in message.get("tool_calls") or ():
            if call["id"] in self.call_ids:
                return self.call_ids[call["id"]]
        return self.answers.get(message.get("reasoning_of") or "")

    def _restore(self, path: Sequence[TreeNode], place: int, message: Message, origin: int | None) -> Message:
        """A turn of ours in the words that were sampled, whatever the harness made of its calls and reasoning."""
        if place < len(path) and path[place].sampled and path[place].message:
            return dict(path[place].message or {})
        ours = self.nodes[origin].message if origin is not None else None
        if not ours:
            return message
        same_calls = call_ids_of(ours) == call_ids_of(message)
        if same_calls and text_of(ours.get("content")).strip() == text_of(message.get("content")).strip():
            return dict(ours)
        by_id = {call["id"]: call for call in ours.get("tool_calls") or ()}
        calls = [by_id.get(call["id"], call) for call in message.get("tool_calls") or ()]
        return {**message, "tool_calls": calls} if calls else message

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

    def _source_flags(
        self, path: Sequence[TreeNode], place: int, message: Message, origin: int | None
    ) -> tuple[str, ...]:
        source = path[place].index if place < len(path) and path[place].sampled else origin
        if source is None:
            return ()
        return (f"{'reused' if message == self.nodes[source].message else 'edited'}:{source}",)

    def _forgiven(self, path: Sequence[TreeNode], walk: Walk) -> list[Difference]:
        """What the matching forgave on the known path."""
        places = [place for place in walk.merged if place < len(path)]
        found = [Difference(kind="shape", message=place, node=path[place].index) for place in places]
        for place, (node, echoed) in enumerate(zip(path, walk.messages, strict=False)):
            if node.sampled and node.message is not None:
                kinds = answer_differences(node.message, echoed)
            else:
                kinds = ["volatile"] if node.exact and node.exact != exact_digest(echoed) else []
            found += [Difference(kind=kind, message=place, node=node.index) for kind in kinds]
        return found

    def _diverged(
        self, path: Sequence[TreeNode], kept: int, walk: Walk, origins: Sequence[int | None]
    ) -> list[Difference]:
        """Why a request that knows the path does not just go on from its end."""
        found = [
            Difference(kind="reused", message=place, node=origin)
            for place, origin in enumerate(origins)
            if place >= len(path) and origin is not None and not self._hangs_from(path, place, origin)
        ]
        if kept < len(path):
            return [Difference(kind="template", message=kept, node=path[kept].index), *found]
        if not path or kept == len(walk.messages) or path[-1].index not in self._children:
            return found
        if any(node.role != "system" for node in path):  # else another conversation under the same system prompt
            found.insert(0, Difference(kind="edit", message=kept, node=path[-1].index))
        return found

    def _hangs_from(self, path: Sequence[TreeNode], place: int, origin: int) -> bool:
        """The first unknown turn is an edited sibling, no turn of another context."""
        return place == len(path) and bool(path) and self.nodes[origin].parent == path[-1].index


def answer_differences(ours: Message, echoed: Message) -> list[str]:
    """Classes in which an echo of our answer differs from it."""
    kinds = []
    our_calls, their_calls = ours.get("tool_calls") or [], echoed.get("tool_calls") or []
    if [(c["name"], c["arguments"]) for c in our_calls] != [(c["name"], c["arguments"]) for c in their_calls]:
        kinds.append("arguments")
    reasoning = ours.get("reasoning") or ""
    has_reasoning = not reasoning or echoed.get("reasoning_of") or reasoning == echoed.get("reasoning")
    if text_of(ours.get("content")) != text_of(echoed.get("content")) or not has_reasoning:
        kinds.append("shape")
    return kinds


def exact_digest(message: Message) -> bytes:
    """Volatile spans count."""
    return digest_message(message, (), ())[:8]


def call_ids_of(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def context_node(tree: Tree, addition: Addition, parent: int | None, *, branch_role: str, agent: str) -> TreeNode:
    """The next node, for what a request adds."""
    role = addition.message["role"]
    return TreeNode(
        index=len(tree.nodes),
        parent=parent,
        depth_tokens=tree.nodes[parent].end_tokens if parent is not None else 0,
        key=addition.key,
        role=role,
        branch_role=branch_role,
        sampled=False,
        ids=addition.ids,
        message=addition.message if role == "assistant" else None,
        agent=agent,
        exact=addition.exact,
    )


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
