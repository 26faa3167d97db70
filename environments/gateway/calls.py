"""The life of a call: opened (or joined), sampled, ended.

From:  app.py, with a session that this gateway holds and a canonical request.
To:    opening.py, generation.py, ending.py; a LiveCall, which delivery.py reads.
Holds: a retry of a call that is under way, or was cut, joins it; a call's failure is its own.

    begin -> Opening.open -> (a task) Generation.sample -> Ending.finish;  Readers.left -> abort
    begin -> Opening.replay, where the record of an earlier session has the answer
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from uuid import UUID

from environments.gateway.dialects import Dialect
from environments.gateway.ending import Ending
from environments.gateway.engine_client import EngineRefused
from environments.gateway.generation import Generation
from environments.gateway.messages import Request
from environments.gateway.open_rollout import LiveCall, OpenRollout
from environments.gateway.opening import Opening, digest_request
from environments.gateway.readers import Readers
from environments.gateway.record import LeaseLost, Record
from environments.gateway.replay import Repeat
from environments.gateway.tree import Plan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Calls:
    record: Record
    generation: Generation
    ending: Ending = field(init=False)
    readers: Readers = field(init=False)
    opening: Opening = field(init=False)

    def __post_init__(self) -> None:
        set_once = object.__setattr__
        set_once(self, "ending", Ending(record=self.record, routing=self.generation.routing))
        set_once(self, "readers", Readers(record=self.record, ending=self.ending))
        set_once(self, "opening", Opening(record=self.record, readers=self.readers))

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
                return await self.opening.replay(rollout, session_id, request, relay_call, repeat)
            plan = await make_plan(rollout, request)
            digest = digest_request(plan, request)
            twin = rollout.by_digest.get(digest)
            if twin and joins(twin, request):
                if relay_call:
                    rollout.by_relay[session_id, relay_call] = twin
                await self.readers.promote(rollout, twin)
                return twin
            call = self.opening.build(rollout, session_id, request, relay_call, plan, digest, twin)
            await self.opening.check_budgets(rollout, call, dialect)
            await self.opening.open(rollout, call, plan, request)
        self.start(rollout, call)
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

    async def _run(self, rollout: OpenRollout, call: LiveCall) -> None:
        try:
            try:
                await self.generation.sample(rollout, call)
                await self.ending.finish(rollout, call, state="completed")
            except EngineRefused as error:
                call.update(error=str(error))
                await self.ending.finish(rollout, call, state="failed")
        except LeaseLost:
            rollout.is_lost = True
        except Exception as error:  # a task's boundary: the call must end, its siblings go on
            logger.exception("A call failed", extra={"rollout": str(rollout.id), "call": str(call.id)})
            await self.ending.give_up(rollout, call, f"The gateway failed on this call: {error!r}")
        finally:
            call.changed.fire()


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
