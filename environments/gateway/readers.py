"""Who waits for a call's answer, and what becomes of it when nobody does.

From:  app.py (a reader came, or left), sessions.py (a call that was taken over expects one), opening.py and calls.py
       (a history that goes through a cut answer).
To:    Call.state and Node.trainable of answers that were cut, or used as complete after all.
Holds: a reader that comes back in time finds its call; an answer nobody took is kept and shown, not trained.
Never: lets a slow or lost reader change what is sampled.
"""

import asyncio
from dataclasses import dataclass, field

from environments import live
from environments.gateway.ending import Ending
from environments.gateway.events import call_event
from environments.gateway.open_rollout import LiveCall, OpenRollout
from environments.gateway.record import LeaseLost, Record, persist
from environments.gateway.roles import Role

HANG_UP_GRACE_S = 2.0
"""A call whose reader went away waits this long for it to come back."""


@dataclass(frozen=True, kw_only=True)
class Readers:
    record: Record
    ending: Ending
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def came(self, call: LiveCall) -> None:
        call.readers += 1
        if call.abort_timer:
            call.abort_timer.cancel()
            call.abort_timer = None

    def left(self, rollout: OpenRollout, call: LiveCall, *, delivered: bool) -> None:
        call.readers -= 1
        call.was_delivered = call.was_delivered or delivered
        if call.readers == 0 and not call.was_delivered:
            self.expect(rollout, call, HANG_UP_GRACE_S)

    def expect(self, rollout: OpenRollout, call: LiveCall, grace_s: float) -> None:
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
                await self.ending.finish(rollout, call, state="aborted")
            elif call.answer and call.row.answer_node is not None:
                await self._mark(rollout, call, state="aborted")
        except LeaseLost:
            rollout.is_lost = True

    async def promote_path(self, rollout: OpenRollout, index: int | None) -> None:
        """A history that goes through a cut answer as if it were complete makes it complete."""
        while index is not None:
            node = rollout.tree.nodes[index]
            call = rollout.by_answer.get(index)
            if call:
                await self.promote(rollout, call)
            index = node.parent

    async def promote(self, rollout: OpenRollout, call: LiveCall) -> None:
        if call.row.state == "aborted" and call.answer:
            await self._mark(rollout, call, state="completed")

    async def _mark(self, rollout: OpenRollout, call: LiveCall, *, state: str) -> None:
        assert call.row.answer_node is not None
        node = rollout.tree.nodes[call.row.answer_node]
        node.trainable = state == "completed" and node.branch_role != Role.SIDE
        flags = [] if state == "completed" else ["aborted"]
        call.update(state=state)
        await persist(
            lambda: self.record.mark_call(
                rollout_id=rollout.id, call_id=call.id, state=state, node=node.index, trainable=node.trainable,
                flags=flags,
            )
        )  # fmt: skip
        live.tell(rollout.id, [call_event(call)])
