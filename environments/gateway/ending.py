"""End a call: its answer is parsed, committed, and only then to be seen.

From:  calls.py when sampling is over, readers.py when nobody waits any more.
To:    a sampled Node, the Call's end and the rollout's counters, in one statement; `node` and `call` events.
Holds: what a harness can act on is in Postgres before `call.answer` is set.
Never: shows an answer that is not committed.
"""

import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import psycopg

from environments import live
from environments.gateway.events import call_event, node_event
from environments.gateway.open_rollout import KEPT_CALLS, LiveCall, OpenRollout, build_answer, build_spans
from environments.gateway.record import LeaseLost, NodeRow, Record, persist
from environments.gateway.roles import Role
from environments.gateway.routing import Routing
from environments.gateway.tree import TreeNode, pack

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ending:
    record: Record
    routing: Routing

    async def finish(self, rollout: OpenRollout, call: LiveCall, *, state: str) -> None:
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
        trim(rollout)

    async def _persist_end(self, rollout: OpenRollout, call: LiveCall, node: NodeRow | None) -> None:
        """Together with the opening, where Postgres crashed before that was on disk. Raises LeaseLost."""

        def end() -> Awaitable[None]:
            return self.record.finish_call(rollout_id=rollout.id, call=call.row, node=node, counters=rollout.counters())

        try:
            await persist(end)
        except LeaseLost:
            opened = replace(call.row, state="open", answer_node=None)
            await persist(
                lambda: self.record.open_call(
                    rollout_id=rollout.id, call=opened, nodes=call.opening, counters=rollout.counters()
                )
            )
            await persist(end)
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
        engines = self.routing.engines
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

    async def give_up(self, rollout: OpenRollout, call: LiveCall, message: str) -> None:
        """A fault of ours: the call ends as failed, and the rollout is built again from the record."""
        call.update(error=message)
        call.sampled.clear()
        try:
            await self.finish(rollout, call, state="failed")
        except (LeaseLost, psycopg.Error) as error:
            logger.warning("A failed call could not be recorded", extra={"error": str(error)})
        call.failure = message
        rollout.is_lost = True


def trim(rollout: OpenRollout) -> None:
    """Forget the oldest calls that nobody can ask for any more."""
    if len(rollout.calls) > KEPT_CALLS:
        for call in list(rollout.calls.values())[:-KEPT_CALLS]:
            if not call.is_open and not call.readers:
                rollout.forget(call)


def pack_logprobs(logprobs: list[float] | None) -> bytes | None:
    return None if logprobs is None else np.array(logprobs, dtype="<f4").tobytes()
