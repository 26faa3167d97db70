"""Which session a request belongs to, and which gateway holds it.

From:  app.py, with the keys of a request.
To:    Held (this gateway has the lease and the rollout in memory) or Elsewhere (a living gateway to forward to).
Holds: a session is held by one gateway; a dead holder's lease moves at once, a silent one's when it runs out.
Never: creates a session.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg
from asgiref.sync import sync_to_async
from django.db import connection

from environments import live
from environments.config import Budgets, Sampling
from environments.gateway.calls import Calls
from environments.gateway.open_rollout import (
    KEPT_CALLS,
    LiveCall,
    OpenRollout,
    restore_done,
    restore_replayed,
    seconds_since,
)
from environments.gateway.record import CallRow, NodeRow, Record, SessionRow
from environments.gateway.refusal import Refusal
from environments.gateway.replay import build_replay
from environments.gateway.roles import Role
from environments.gateway.tree import Tree, TreeNode, exact_digest
from environments.harnesses.base import Habits
from environments.models.model import Model
from environments.rendering.protocol import Renderer

RENEW_S = 3.0
RESUME_GRACE_S = 10.0
"""A call that was taken over from another gateway waits this long for its reader."""
IDLE_S = 900.0
"""A session without a request for this long is given up; the next request loads it again."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Held:
    session: SessionRow
    rollout: OpenRollout


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    gateway: str


class Sessions:
    def __init__(self, *, record: Record, calls: Calls, socket_dir: Path, host: str) -> None:
        self.record, self.calls = record, calls
        self.socket_dir, self.host = socket_dir, host
        self.held: dict[str, Held] = {}
        self.models: dict[UUID, tuple[Model, Renderer]] = {}
        self._loading: dict[UUID, asyncio.Lock] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.record.release_sessions()

    async def find(self, key: str, *, is_path_key: bool) -> Held | Elsewhere:
        """Raises Refusal: 404 or 401 for an unknown key, 409 for a finished session."""
        held = self.held.get(key)
        if held and not held.rollout.is_lost:
            return held
        session = await self.record.load_session(key)
        if session is None:
            raise unknown_key(is_path_key=is_path_key)
        if session.finished_at is not None:
            raise finished_session()
        async with self._loading.setdefault(session.rollout_id, asyncio.Lock()):
            held = self.held.get(key)
            if held and not held.rollout.is_lost:
                return held
            return await self._take(session)

    async def _take(self, session: SessionRow) -> Held | Elsewhere:
        holder = session.gateway
        is_ours = holder in ("", self.record.gateway)
        if not is_ours and not session.lease_is_over and await self._is_alive(holder):
            return Elsewhere(gateway=holder)
        if not await self.record.claim_session(session.id, seen_holder=holder):
            return Elsewhere(gateway=holder)  # another gateway was faster; it says so when asked again
        rollout = next((h.rollout for h in self.held.values() if h.rollout.id == session.rollout_id), None)
        is_new_start = (session.is_second or session.original_id) and session.id not in (
            rollout.replays if rollout else ()
        )
        if rollout is None or rollout.is_lost or is_new_start:
            if rollout:
                await self.calls.stop(rollout)
            rollout = await self._load(session)
        held = Held(session=session, rollout=rollout)
        self.held[session.key] = held
        return held

    async def _is_alive(self, holder: str) -> bool:
        """Of this host: whether its socket answers. Of another: only its lease can tell."""
        host, _, name = holder.partition("/")
        if host != self.host:
            return True
        try:
            _, writer = await asyncio.open_unix_connection(str(self.socket_dir / name))
        except OSError:
            return False
        writer.close()
        return True

    async def _load(self, session: SessionRow) -> OpenRollout:
        model, renderer = await self._model(session.model_id)
        rollout = build_rollout(session, model, renderer)
        nodes = await self.record.load_nodes(session.rollout_id)
        for node in nodes:
            rollout.tree.add(tree_node(node, is_volatile=bool(rollout.tree.volatile)))
        rollout.main_system = next(
            (n.message.get("content") or "" for n in nodes
             if n.parent is None and n.branch_role == Role.MAIN and n.role == "system"), "",
        )  # fmt: skip
        calls = await self.record.load_calls(session.rollout_id)
        for call in calls:
            count_call(rollout, call)
            if call.answer_node is not None:
                rollout.tree.answers[call.id.hex] = call.answer_node
        for node in nodes:
            count_versions(rollout, node)
        shared = await self._shared_calls(session)
        if session.is_second or session.original_id:
            earlier = [c for c in calls if c.session_id != session.id and c.replay_of_id is None]
            used = {c.replay_of_id for c in calls if c.session_id == session.id and c.replay_of_id}
            rollout.replays[session.id] = build_replay(nodes, [*shared, *earlier], used)
        await self._restore_calls(rollout, session, calls, shared)
        return rollout

    async def _shared_calls(self, session: SessionRow) -> list[CallRow]:
        """Of a fork: the original's calls before the one that is answered live again."""
        if session.original_id is None or session.fork_call is None:
            return []
        return [c for c in await self.record.load_calls(session.original_id) if c.index < session.fork_call]

    async def _restore_calls(
        self, rollout: OpenRollout, session: SessionRow, calls: list[CallRow], shared: list[CallRow]
    ) -> None:
        sources = {row.id: row for row in (*shared, *calls)}
        for row in calls:
            if row.state == "open" and row.session_id != session.id:  # its sandbox is gone, and its reader with it
                row.state = "aborted"
                await self.record.mark_call(
                    rollout_id=rollout.id, call_id=row.id, state="aborted", node=None, trainable=False, flags=[]
                )
        done = [row for row in calls if row.state in ("completed", "aborted")]
        for row in done[-KEPT_CALLS:]:
            if row.answer_node is not None and (row.state == "completed" or row.finish_reason):
                rollout.remember(restore_done(rollout, row, row.answer_node))
        for row in done:
            source = sources.get(row.replay_of_id) if row.replay_of_id else None
            if source:
                rollout.remember(restore_replayed(rollout, row, source))
        for row in calls:
            if row.state == "open":
                call = await restore_open(rollout, row)
                rollout.remember(call)
                self.calls.start(rollout, call)
                self.calls.readers.expect(rollout, call, RESUME_GRACE_S)

    async def _model(self, model_id: UUID) -> tuple[Model, Renderer]:
        if model_id not in self.models:
            self.models[model_id] = await sync_to_async(load_model)(model_id)
        return self.models[model_id]

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            self._drop_idle()
            ours = {held.session.id for held in self.held.values()}
            if not ours:
                continue
            try:
                kept = await self.record.renew_sessions(list(ours))
            except psycopg.Error as error:
                logger.warning("Session leases were not renewed", extra={"error": str(error)})
                continue
            for key, held in list(self.held.items()):
                if held.session.id in ours - kept:
                    del self.held[key]
                    if not any(h.rollout is held.rollout for h in self.held.values()):
                        self.calls.generation.routing.forget(held.rollout.id)
                        self._loading.pop(held.rollout.id, None)

    def _drop_idle(self) -> None:
        for key, held in list(self.held.items()):
            busy = any(call.is_open or call.readers for call in held.rollout.calls.values())
            if held.rollout.is_lost or (not busy and time.monotonic() - held.rollout.last_used > IDLE_S):
                del self.held[key]

    async def acknowledge(self, relay_call: str) -> None:
        """The relay delivered the whole answer; nothing has to be kept for it."""
        for held in self.held.values():
            for (_, known), call in held.rollout.by_relay.items():
                if known == relay_call:
                    call.was_delivered = True
                    return


def unknown_key(*, is_path_key: bool) -> Refusal:
    if is_path_key:
        return Refusal(404, "unknown_session", "There is no session with this key. The base URL is /s/<session key>.")
    return Refusal(401, "invalid_api_key", "Incorrect API key provided: the API key must be the key of a session.")


def finished_session() -> Refusal:
    return Refusal(409, "session_finished", "This session is finished; its model calls are over.")


def load_model(model_id: UUID) -> tuple[Model, Renderer]:
    """In a thread: tokenizer files are read. The thread's database connection is not kept."""
    try:
        model = Model.objects.get(id=model_id)
        return model, find_renderer(model)
    finally:
        connection.close()


def find_renderer(model: Model) -> Renderer:
    if model.renderer == "scripted":
        from environments.rendering.scripted import ScriptedRenderer

        return ScriptedRenderer()
    from environments.rendering import load_renderer

    return load_renderer(model)


def build_rollout(session: SessionRow, model: Model, renderer: Renderer) -> OpenRollout:
    from environments.harnesses import HARNESSES

    program = HARNESSES.get(session.program)
    habits = program.habits if program else Habits()
    budgets = Budgets(**session.budgets)
    return OpenRollout(
        id=session.rollout_id,
        pool=session.pool,
        sampling=Sampling(**session.sampling),
        budgets=budgets,
        max_context=min(budgets.max_context_tokens, model.context_length),
        model_name=model.name,
        renderer=renderer,
        delivery=session.delivery,
        program=session.program,
        habits=habits,
        instruction=session.instruction,
        task_directory=session.task_directory,
        ending=session.ending,
        tree=Tree(volatile=tuple(re.compile(pattern) for pattern in habits.volatile)),
        drift=Counter(session.drift),
    )


def tree_node(row: NodeRow, *, is_volatile: bool) -> TreeNode:
    """is_volatile: the harness has patterns of spans that change without meaning."""
    return TreeNode(
        index=row.index,
        parent=row.parent,
        depth_tokens=row.depth_tokens,
        key=bytes(row.key),
        role=row.role,
        branch_role=row.branch_role,
        sampled=row.sampled,
        ids=bytes(row.ids),
        opener_length=row.opener_length,
        message=row.message if row.role == "assistant" else None,
        trainable=row.trainable,
        agent=next((flag[6:] for flag in row.flags if flag.startswith("agent:")), ""),
        oldest_kv_version=row.oldest_kv_version,
        exact=exact_digest(row.message) if is_volatile and row.role != "assistant" else b"",
    )


def count_call(rollout: OpenRollout, row: CallRow) -> None:
    rollout.next_index = row.index + 1
    if row.state != "refused" and row.replay_of_id is None:
        rollout.num_calls += 1
        rollout.longest_context = max(rollout.longest_context, row.num_prompt_tokens + row.num_sampled_tokens)
        rollout.sampled_tokens += row.num_sampled_tokens if row.state != "open" else 0


def count_versions(rollout: OpenRollout, node: NodeRow) -> None:
    for _, _, version in node.version_spans:
        if version >= 0:
            oldest, newest = rollout.oldest_version, rollout.newest_version
            rollout.oldest_version = version if oldest is None else min(oldest, version)
            rollout.newest_version = version if newest is None else max(newest, version)


async def restore_open(rollout: OpenRollout, row: CallRow) -> LiveCall:
    """A call that died with its gateway, up to the last token that the live log has."""
    now = datetime.now(UTC)
    call = LiveCall(
        row=row,
        opener=list(row.imposed.get("opener", ())),
        max_tokens=int(row.imposed.get("max_tokens", 1)),
        started=time.monotonic() - seconds_since(row.started_at, now),
        branch_role=rollout.tree.nodes[row.prompt_node].branch_role if row.prompt_node is not None else Role.MAIN,
    )
    await each_event(rollout.id, lambda entry: take_logged(call, entry))
    call.journaled = len(call.sampled)
    return call


async def each_event(rollout_id: UUID, take: Callable[[live.Entry], None]) -> None:
    after = None
    while True:
        page = await live.read(rollout_id, after, limit=2000)
        for entry in page.entries:
            take(entry)
        if not page.entries:
            return
        after = (page.entries[-1].epoch, page.entries[-1].n)


def take_logged(call: LiveCall, entry: live.Entry) -> None:
    data = entry.data
    if entry.kind == "call" and data["call"] == str(call.id) and data.get("engines"):
        call.update(engines=data["engines"])
    if entry.kind != "tokens" or data["call"] != str(call.id) or not data["ids"]:
        return
    start = data["start"]
    call.sampled[start:] = data["ids"]
    call.versions[start:] = [data["version"]] * len(data["ids"])
    if data["logprobs"] is None:
        call.logprobs = None
    elif call.logprobs is not None:
        call.logprobs[start:] = data["logprobs"]
    if call.row.first_token_s is None:
        call.update(first_token_s=0.0)
