"""Open a call: what it may cost, the nodes its prompt adds, its row.

From:  calls.py, with a canonical request and where it hangs in the tree, under the rollout's lock.
To:    Node and Call rows in one statement, then memory is what the record is; `node` and `call` events.
Holds: budgets end the rollout as a scored truncation; a refused request leaves the tree as it was.
Never: asks an engine.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from environments import live
from environments.gateway.dialects import Dialect
from environments.gateway.events import call_event, node_event
from environments.gateway.messages import NO_KEY, Request
from environments.gateway.open_rollout import LiveCall, OpenRollout, restore_replayed
from environments.gateway.readers import Readers
from environments.gateway.record import CallRow, NodeRow, Record, persist
from environments.gateway.refusal import Refusal
from environments.gateway.replay import Repeat
from environments.gateway.roles import Role, find_role, system_text
from environments.gateway.tree import Plan, TreeNode, context_node
from environments.models.outcome import Outcome
from environments.text import dump_json


@dataclass(frozen=True, kw_only=True)
class Opening:
    record: Record
    readers: Readers

    def build(
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

    async def check_budgets(self, rollout: OpenRollout, call: LiveCall, dialect: Dialect) -> None:
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
            await persist(lambda: self.record.set_ending(rollout.id, ending.value))
            rollout.ending = ending.value
        if first:
            call.update(
                state="refused", prompt_node=None, http_status=refusal.status, error=refusal.message, duration_s=0.0
            )
            await persist(
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

    async def open(self, rollout: OpenRollout, call: LiveCall, plan: Plan, request: Request) -> None:
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
        await self.readers.promote_path(rollout, plan.parent)
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
            await persist(
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

    async def replay(
        self, rollout: OpenRollout, session_id: UUID, request: Request, relay_call: str, repeat: Repeat
    ) -> LiveCall:
        """The recorded answer, as a call of this session; nothing is sampled and no budget is used."""
        source, tree = repeat.row, rollout.tree
        plan = Plan(parent=source.prompt_node, additions=[], opener=[], differences=tree.uncounted(repeat.differences),
                    chain=repeat.chain)  # fmt: skip
        built = self.build(rollout, session_id, request, relay_call, plan, digest_request(plan, request), None)
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
        await persist(
            lambda: self.record.open_call(rollout_id=rollout.id, call=row, nodes=[], counters=rollout.counters())
        )
        rollout.remember(call)
        live.tell(rollout.id, [call_event(call)])
        return call


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
