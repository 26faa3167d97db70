"""The life of a call: opened (or joined), sampled, committed, and what becomes of it when nobody waits.

From:  app.py, with a session that this gateway holds and a canonical request.
To:    LiveCall, which delivery.py reads; Node and Call rows; `node` and `call` events.
Holds: what a harness can act on is committed before it is sent; a retry of a call that is under way, or was cut,
       joins it; budgets end the rollout as a scored truncation.
Never: lets a slow or lost reader change what is sampled.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psycopg

from environments import live
from environments.gateway.dialects import Dialect
from environments.gateway.engine_client import EngineRefused
from environments.gateway.generation import Generation, call_event
from environments.gateway.messages import NO_KEY, Request
from environments.gateway.open_rollout import LiveCall, OpenRollout, build_answer, build_spans, restore_replayed
from environments.gateway.record import CallRow, LeaseLost, NodeRow, Record
from environments.gateway.replay import Repeat
from environments.gateway.roles import Role, find_role, system_text
from environments.gateway.tree import Plan, TreeNode, context_node, pack
from environments.models.outcome import Outcome
from environments.text import dump_json

HANG_UP_GRACE_S = 2.0
"""A call whose reader went away waits this long for it to come back."""
RESUME_GRACE_S = 10.0
"""The same for a call that a new gateway took over."""
KEPT_CALLS = 32
"""Calls of a rollout kept in memory after their end, for retries and reconnects."""

logger = logging.getLogger(__name__)


class Refusal(Exception):
    """Gateway boundary: this request is answered with an error; a retry gets the same."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param


@dataclass(frozen=True, kw_only=True)
class Calls:
    record: Record
    generation: Generation
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def begin(
        self, rollout: OpenRollout, *, session_id: UUID, request: Request, relay_call: str, dialect: Dialect
    ) -> LiveCall:
        """The call that answers this request: a new one, or one that it repeats. Raises Refusal, LeaseLost."""
        async with rollout.lock:
            rollout.last_used = time.monotonic()
            known = rollout.by_relay.get((session_id, relay_call)) if relay_call else None
            if known:
                return known
            if repeat := find_repeat(rollout, session_id, request):
                return await self._replay(rollout, session_id, request, relay_call, repeat)
            plan = await make_plan(rollout, request)
            digest = digest_request(plan, request)
            twin = rollout.by_digest.get(digest)
            if twin and joins(twin, request):
                if relay_call:
                    rollout.by_relay[session_id, relay_call] = twin
                await self._promote(rollout, twin)
                return twin
            call = self._build(rollout, session_id, request, relay_call, plan, digest, twin)
            await self._check_budgets(rollout, call, dialect)
            await self._open(rollout, call, plan, request)
        self.start(rollout, call)
        return call

    async def _replay(
        self, rollout: OpenRollout, session_id: UUID, request: Request, relay_call: str, repeat: Repeat
    ) -> LiveCall:
        """The recorded answer, as a call of this session; nothing is sampled and no budget is used."""
        source, tree = repeat.row, rollout.tree
        plan = Plan(parent=source.prompt_node, additions=[], opener=[], differences=tree.uncounted(repeat.differences),
                    chain=repeat.chain)  # fmt: skip
        built = self._build(rollout, session_id, request, relay_call, plan, digest_request(plan, request), None)
        aliases = {key.hex(): node for key, node in repeat.aliases.items()}
        row = replace(
            built.row, state="completed", replay_of_id=source.id, finish_reason=source.finish_reason, http_status=200,
            num_prompt_tokens=source.num_prompt_tokens, imposed={"aliases": aliases}, duration_s=0.0,
        )  # fmt: skip
        call = restore_replayed(rollout, row, source)
        call.was_delivered = False
        tree.take(plan)
        rollout.drift.update(plan.drift)
        rollout.next_index += 1
        await self._persist(
            lambda: self.record.open_call(rollout_id=rollout.id, call=row, nodes=[], counters=rollout.counters())
        )
        rollout.remember(call)
        live.tell(rollout.id, [call_event(call)])
        return call

    def start(self, rollout: OpenRollout, call: LiveCall) -> None:
        call.task = asyncio.create_task(self._run(rollout, call))

    async def stop(self, rollout: OpenRollout) -> None:
        """Leave its calls as the record has them; whoever loads the rollout next goes on with them."""
        rollout.is_lost = True
        tasks = []
        for call in rollout.calls.values():
            if call.abort_timer:
                call.abort_timer.cancel()
            if call.task and call.is_open and not call.is_committing:
                call.task.cancel()
                tasks.append(call.task)
            call.changed.fire()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _build(
        self,
        rollout: OpenRollout,
        session_id: UUID,
        request: Request,
        relay_call: str,
        plan: Plan,
        digest: bytes,
        twin: LiveCall | None,
    ) -> LiveCall:
        tree = rollout.tree
        base = tree.nodes[plan.parent].end_tokens if plan.parent is not None else 0
        num_prompt = base + sum(len(a.ids) // 4 for a in plan.additions) + len(plan.opener)
        room = rollout.max_context - num_prompt
        left = rollout.budgets.max_sampled_tokens - rollout.sampled_tokens - num_open_tokens(rollout)
        max_tokens = max(1, min(rollout.sampling.max_tokens, room, left))
        sampling = rollout.sampling.model_dump(exclude_none=True)
        index = rollout.next_index
        if "seed" in sampling:
            sampling["seed"] = (sampling["seed"] + 1_000_003 * index) % 2**31
        row = CallRow(
            id=uuid4(),
            session_id=session_id,
            index=index,
            relay_call=relay_call,
            dialect=request.dialect,
            digest=digest,
            state="open",
            prompt_node=plan.parent if not plan.additions else len(tree.nodes) + len(plan.additions) - 1,
            answer_node=None,
            streamed=request.stream,
            requested=request.requested,
            imposed=sampling | {"max_tokens": max_tokens, "opener": plan.opener, "delivery": rollout.delivery},
            unknown=request.unknown,
            drift=[difference.to_json() for difference in plan.differences],
            num_prompt_tokens=num_prompt,
            num_cached_tokens=0,
            num_sampled_tokens=0,
            finish_reason="",
            http_status=None,
            error="",
            engines=[],
            replay_of_id=None,
            retry_of_id=twin.id if twin and twin.row.state in ("aborted", "failed") else None,
            started_at=datetime.now(UTC),
            first_token_s=None,
            held_s=0.0,
            duration_s=None,
        )
        return LiveCall(row=row, opener=plan.opener, max_tokens=max_tokens, agent=request.agent)

    async def _check_budgets(self, rollout: OpenRollout, call: LiveCall, dialect: Dialect) -> None:
        """Raises Refusal when this call would pass a budget; the first to do so is recorded and ends the rollout."""
        budgets = rollout.budgets
        spent = ""
        if rollout.num_calls >= budgets.max_calls:
            spent = f"{budgets.max_calls} calls"
        elif rollout.sampled_tokens >= budgets.max_sampled_tokens:
            spent = f"{budgets.max_sampled_tokens} sampled tokens"
        if spent or rollout.ending == Outcome.BUDGET_REACHED:
            refusal = Refusal(
                409,
                "budget_reached",
                f"This rollout has used its budget{' of ' + spent if spent else ''}. It ends here.",
            )
            await self._refuse(rollout, call, Outcome.BUDGET_REACHED, refusal)
        if call.row.num_prompt_tokens >= rollout.max_context or rollout.ending == Outcome.CONTEXT_OVERFLOW:
            status, code, message = dialect.overflow(
                limit=rollout.max_context, num_prompt_tokens=call.row.num_prompt_tokens
            )
            ending = None if rollout.habits.compacts else Outcome.CONTEXT_OVERFLOW
            await self._refuse(rollout, call, ending, Refusal(status, code, message, "messages"))

    async def _refuse(self, rollout: OpenRollout, call: LiveCall, ending: Outcome | None, refusal: Refusal) -> None:
        first = rollout.ending == ""
        if ending and first:
            await self._persist(lambda: self.record.set_ending(rollout.id, ending.value))
            rollout.ending = ending.value
        if first:
            call.update(
                state="refused", prompt_node=None, http_status=refusal.status, error=refusal.message, duration_s=0.0
            )
            await self._persist(
                lambda: self.record.open_call(
                    rollout_id=rollout.id,
                    call=replace(call.row, relay_call=""),
                    nodes=[],
                    counters=rollout.counters(),
                )
            )
            rollout.next_index += 1
            live.tell(rollout.id, [call_event(call)])
        raise refusal

    async def _open(self, rollout: OpenRollout, call: LiveCall, plan: Plan, request: Request) -> None:
        tree = rollout.tree
        role = find_role(
            request,
            parent_role=tree.nodes[plan.parent].branch_role if plan.parent is not None else None,
            instruction=rollout.instruction,
            main_exists=any(node.parent is None and node.branch_role == Role.MAIN for node in tree.nodes[:64]),
            main_system=rollout.main_system,
            rules=rollout.habits.roles,
        )
        if plan.parent is None and role == Role.MAIN:
            rollout.main_system = rollout.main_system or system_text(request)
        call.branch_role = role
        await self._promote_path(rollout, plan.parent)
        rows = []
        parent = plan.parent
        for addition in plan.additions:
            node = context_node(tree, addition, parent, branch_role=role, agent=request.agent)
            tree.add(node)
            parent = node.index
            rows.append(node_row(node, addition.message, addition.flags))
        tree.take(plan)
        rollout.drift.update(plan.drift)
        rollout.num_calls += 1
        rollout.next_index += 1
        rollout.longest_context = max(rollout.longest_context, call.row.num_prompt_tokens)
        try:
            await self._persist(
                lambda: self.record.open_call(
                    rollout_id=rollout.id, call=call.row, nodes=rows, counters=rollout.counters()
                )
            )
        except BaseException:
            rollout.is_lost = True  # memory is ahead of the record: it is built again
            raise
        call.opening = rows
        rollout.remember(call)
        live.tell(rollout.id, [*(node_event(row, None) for row in rows), call_event(call)])

    async def _run(self, rollout: OpenRollout, call: LiveCall) -> None:
        try:
            try:
                await self.generation.sample(rollout, call)
                await self._finish(rollout, call, state="completed")
            except EngineRefused as error:
                call.update(error=str(error))
                await self._finish(rollout, call, state="failed")
        except LeaseLost:
            rollout.is_lost = True
        except Exception as error:  # a task's boundary: the call must end, its siblings go on
            logger.exception("A call failed", extra={"rollout": str(rollout.id), "call": str(call.id)})
            await self._give_up(rollout, call, f"The gateway failed on this call: {error!r}")
        finally:
            call.changed.fire()

    async def _give_up(self, rollout: OpenRollout, call: LiveCall, message: str) -> None:
        """A fault of ours: the call ends as failed, and the rollout is built again from the record."""
        call.update(error=message)
        call.sampled.clear()
        try:
            await self._finish(rollout, call, state="failed")
        except (LeaseLost, psycopg.Error) as error:
            logger.warning("A failed call could not be recorded", extra={"error": str(error)})
        call.failure = message
        rollout.is_lost = True

    async def _finish(self, rollout: OpenRollout, call: LiveCall, *, state: str) -> None:
        """Commit the answer; only then can a reader see it."""
        call.is_committing = True
        answer = build_answer(rollout, call) if call.sampled or state == "completed" else None
        async with rollout.lock:
            row = None
            if answer and call.row.prompt_node is not None and call.sampled:
                row = self._answer_row(rollout, call, answer.message, is_whole=state == "completed")
                call.update(answer_node=row.index)
            call.update(
                state=state,
                num_sampled_tokens=len(call.sampled),
                finish_reason=answer.finish_reason if answer and state == "completed" else call.row.finish_reason,
                http_status={"completed": 200, "failed": 500}.get(state),
                duration_s=time.monotonic() - call.started,
            )
            if any(call.keep_alives.values()):
                call.update(imposed=call.row.imposed | {"keep_alives": call.keep_alives})
            self._count(rollout, call)
            node = None
            if row:
                node = TreeNode(
                    index=row.index, parent=row.parent, depth_tokens=row.depth_tokens, key=row.key, role=row.role,
                    branch_role=row.branch_role, sampled=True, ids=row.ids, opener_length=row.opener_length,
                    message=row.message, trainable=row.trainable, agent=call.agent,
                    oldest_kv_version=row.oldest_kv_version,
                )  # fmt: skip
                rollout.tree.add(node)
            try:
                await self._persist_end(rollout, call, row)
            except BaseException:
                rollout.is_lost = True
                raise
            rollout.remember(call)
        if state == "completed":
            call.answer = answer
        else:
            call.failure = call.row.error or "The call was aborted."
        call.journaled = len(call.sampled)
        call.logprobs, call.versions = [], []  # only the record needs them from here on
        call.changed.fire()
        live.tell(rollout.id, [*([node_event(row, call)] if row else []), call_event(call)])
        self._trim(rollout)

    async def _persist_end(self, rollout: OpenRollout, call: LiveCall, node: NodeRow | None) -> None:
        """Together with the opening, where Postgres crashed before that was on disk. Raises LeaseLost."""

        def end() -> Awaitable[None]:
            return self.record.finish_call(rollout_id=rollout.id, call=call.row, node=node, counters=rollout.counters())

        try:
            await self._persist(end)
        except LeaseLost:
            opened = replace(call.row, state="open", answer_node=None)
            await self._persist(
                lambda: self.record.open_call(
                    rollout_id=rollout.id, call=opened, nodes=call.opening, counters=rollout.counters()
                )
            )
            await self._persist(end)
        call.opening = ()

    def _answer_row(self, rollout: OpenRollout, call: LiveCall, message: dict[str, Any], *, is_whole: bool) -> NodeRow:
        tree = rollout.tree
        assert call.row.prompt_node is not None
        parent = tree.nodes[call.row.prompt_node]
        opener_length = len(call.opener)
        known = [version for version in call.versions if version >= 0]
        flags = ([] if is_whole else ["aborted"]) + ([f"agent:{call.agent}"] if call.agent else [])
        return NodeRow(
            index=len(tree.nodes),
            parent=parent.index,
            depth_tokens=parent.end_tokens,
            key=tree.answer_key(parent.index, message),
            role="assistant",
            branch_role=call.branch_role,
            ids=pack([*call.opener, *call.sampled]),
            message=message,
            sampled=True,
            trainable=is_whole and call.branch_role != Role.SIDE,
            opener_length=opener_length,
            behaviour_logprobs=pack_logprobs(call.logprobs),
            version_spans=build_spans(call.versions, opener_length),
            oldest_kv_version=self._oldest_kv(rollout, call, min(known)) if known else None,
            engines=call.row.engines,
            flags=flags,
        )

    def _oldest_kv(self, rollout: OpenRollout, call: LiveCall, own: int) -> int:
        """`recompute` reads the context again under new weights; `keep` leaves it as old as it was."""
        engines = self.generation.routing.engines
        keeps = any((e := engines.get(UUID(name))) and e.cache_policy == "keep" for name in call.row.engines)
        if not keeps:
            return own
        path = rollout.tree.path(call.row.prompt_node)
        return min([own, *(n.oldest_kv_version for n in path if n.oldest_kv_version is not None)])

    def _count(self, rollout: OpenRollout, call: LiveCall) -> None:
        rollout.sampled_tokens += len(call.sampled)
        rollout.longest_context = max(rollout.longest_context, call.row.num_prompt_tokens + len(call.sampled))
        known = [version for version in call.versions if version >= 0]
        if known:
            oldest, newest = rollout.oldest_version, rollout.newest_version
            rollout.oldest_version = min(known) if oldest is None else min(oldest, *known)
            rollout.newest_version = max(known) if newest is None else max(newest, *known)

    def reader_came(self, call: LiveCall) -> None:
        call.readers += 1
        if call.abort_timer:
            call.abort_timer.cancel()
            call.abort_timer = None

    def reader_left(self, rollout: OpenRollout, call: LiveCall, *, delivered: bool) -> None:
        call.readers -= 1
        call.was_delivered = call.was_delivered or delivered
        if call.readers == 0 and not call.was_delivered:
            self.expect_reader(rollout, call, HANG_UP_GRACE_S)

    def expect_reader(self, rollout: OpenRollout, call: LiveCall, grace_s: float) -> None:
        def give_up() -> None:
            task = asyncio.create_task(self.abort(rollout, call))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        call.abort_timer = asyncio.get_running_loop().call_later(grace_s, give_up)

    async def abort(self, rollout: OpenRollout, call: LiveCall) -> None:
        """Nobody came back for it: kept and shown, not trainable. Whole ones can be promoted later."""
        if call.readers or call.was_delivered or rollout.is_lost:
            return
        try:
            if call.is_open and not call.is_committing and call.task:
                call.task.cancel()
                await asyncio.gather(call.task, return_exceptions=True)
                call.update(error="The client hung up.")
                await self._finish(rollout, call, state="aborted")
            elif call.answer and call.row.answer_node is not None:
                await self._mark(rollout, call, state="aborted")
        except LeaseLost:
            rollout.is_lost = True

    async def _promote_path(self, rollout: OpenRollout, index: int | None) -> None:
        """A history that goes through a cut answer as if it were complete makes it complete."""
        while index is not None:
            node = rollout.tree.nodes[index]
            call = rollout.by_answer.get(index)
            if call:
                await self._promote(rollout, call)
            index = node.parent

    async def _promote(self, rollout: OpenRollout, call: LiveCall) -> None:
        if call.row.state == "aborted" and call.answer:
            await self._mark(rollout, call, state="completed")

    async def _mark(self, rollout: OpenRollout, call: LiveCall, *, state: str) -> None:
        assert call.row.answer_node is not None
        node = rollout.tree.nodes[call.row.answer_node]
        node.trainable = state == "completed" and node.branch_role != Role.SIDE
        flags = [] if state == "completed" else ["aborted"]
        call.update(state=state)
        await self._persist(
            lambda: self.record.mark_call(
                rollout_id=rollout.id, call_id=call.id, state=state, node=node.index, trainable=node.trainable,
                flags=flags,
            )
        )  # fmt: skip
        live.tell(rollout.id, [call_event(call)])

    def _trim(self, rollout: OpenRollout) -> None:
        if len(rollout.calls) > KEPT_CALLS:
            for call in list(rollout.calls.values())[:-KEPT_CALLS]:
                if not call.is_open and not call.readers:
                    rollout.forget(call)

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat until Postgres takes it: a restart of the database is not the harness's business."""
        for attempt in range(1_000_000):
            try:
                await write()
                return
            except psycopg.errors.UniqueViolation as error:
                if attempt:
                    return  # the first try was committed, only its answer was lost
                raise LeaseLost from error
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if attempt == 0:
                    logger.warning("Postgres cannot be reached; holding", extra={"error": str(error)})
                await asyncio.sleep(min(1.0, 0.05 * 2**attempt))


async def make_plan(rollout: OpenRollout, request: Request) -> Plan:
    if request.is_large:
        return await asyncio.to_thread(rollout.tree.plan, request, rollout.renderer)
    return rollout.tree.plan(request, rollout.renderer)


def find_repeat(rollout: OpenRollout, session_id: UUID, request: Request) -> Repeat | None:
    replay = rollout.replays.get(session_id)
    if replay is None:
        return None
    return replay.find(
        rollout.tree,
        request,
        instruction=rollout.instruction,
        main_system=rollout.main_system,
        rules=rollout.habits.roles,
    )


def joins(twin: LiveCall, request: Request) -> bool:
    """A repetition of a call that is under way, or was cut before its end; or one that says it is a retry."""
    if twin.is_open:
        return True
    return twin.answer is not None and (not twin.was_delivered or request.is_retry)


def num_open_tokens(rollout: OpenRollout) -> int:
    """What calls under way may still sample, so that parallel calls keep the budget."""
    return sum(call.max_tokens for call in rollout.calls.values() if call.is_open)


def digest_request(plan: Plan, request: Request) -> bytes:
    """Of the canonical body and the agent: key order, client metadata and streaming do not count."""
    parameters = dump_json({name: request.requested[name] for name in sorted(request.requested)})
    state = hashlib.blake2b(digest_size=20)
    for part in (plan.chain or NO_KEY, request.agent.encode("utf-8", "surrogatepass"), parameters):
        state.update(len(part).to_bytes(8, "little") + part)
    return state.digest()


def node_row(node: TreeNode, message: dict[str, Any], flags: Sequence[str] = ()) -> NodeRow:
    return NodeRow(
        index=node.index,
        parent=node.parent,
        depth_tokens=node.depth_tokens,
        key=node.key,
        role=node.role,
        branch_role=node.branch_role,
        ids=node.ids,
        message=message,
        flags=[*([f"agent:{node.agent}"] if node.agent else []), *flags],
    )


def node_event(row: NodeRow, call: LiveCall | None) -> tuple[str, dict[str, Any]]:
    return "node", {
        "index": row.index,
        "parent": row.parent,
        "role": row.role,
        "branch_role": row.branch_role,
        "sampled": row.sampled,
        "trainable": row.trainable,
        "message": row.message,
        "num_tokens": len(row.ids) // 4,
        "depth_tokens": row.depth_tokens,
        "opener_length": row.opener_length,
        "version_spans": row.version_spans,
        "flags": row.flags,
        "call": str(call.id) if call else None,
    }


def pack_logprobs(logprobs: list[float] | None) -> bytes | None:
    return None if logprobs is None else np.array(logprobs, dtype="<f4").tobytes()
