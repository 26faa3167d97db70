"""What the live log says of calls and nodes.

From:  whoever changes a call: opening.py, generation.py, ending.py, readers.py.
To:    `call` and `node` events (docs/reference/live-protocol.md).
"""

from typing import Any

from environments.gateway.open_rollout import LiveCall
from environments.gateway.record import NodeRow


def call_event(call: LiveCall, **more: Any) -> tuple[str, dict[str, Any]]:
    row = call.row
    data = {
        "call": str(row.id),
        "index": row.index,
        "state": row.state,
        "dialect": row.dialect,
        "streamed": row.streamed,
        "retry_of": str(row.retry_of_id) if row.retry_of_id else None,
        "replay_of": str(row.replay_of_id) if row.replay_of_id else None,
        "drift": row.drift,
        "prompt_node": row.prompt_node,
        "num_prompt_tokens": row.num_prompt_tokens,
        "finish_reason": row.finish_reason,
        "error": row.error,
        "engines": row.engines,
        "first_token_s": row.first_token_s,
        "duration_s": row.duration_s,
        "held_s": row.held_s,
        "hold_reason": "",
    }
    return "call", data | more


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
