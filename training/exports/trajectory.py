"""ATIF, the Agent Trajectory Interchange Format: one JSON file a rollout, checked by the `atif` package's own models.

Holds: steps are the messages of the rollout's longest branch in order; a tool result is the observation of the step
       that called for it; token ids and logprobs are those of the engine.
"""

from typing import Any

from training.exports.formats import Item, NoLine, main_branch
from training.exports.record import Branch, Message, RolloutRecord

SCHEMA = "ATIF-v1.8"


def build_trajectory(record: RolloutRecord, item: Item) -> dict[str, Any]:
    branch = main_branch(record)
    steps: list[dict[str, Any]] = []
    for place, message in enumerate(branch.messages):
        if message["role"] == "tool" and steps and steps[-1]["source"] == "agent":
            observe(steps[-1], message)
            continue
        steps.append(build_step(len(steps) + 1, branch, place, message))
    if not steps:
        raise NoLine("no message")
    rollout = record.rollout
    return {
        "schema_version": SCHEMA,
        "session_id": str(rollout.pk),
        "agent": {
            "name": rollout.harness.name,
            "version": rollout.harness.version or "unknown",
            "model_name": rollout.model.name,
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(call.num_prompt_tokens for call in record.calls),
            "total_completion_tokens": rollout.sampled_tokens,
            "total_steps": len(steps),
        },
        "extra": {**record.provenance, "reward": item.get("reward"), "kept": item.get("kept")},
    }


def build_step(number: int, branch: Branch, place: int, message: Message) -> dict[str, Any]:
    role = message["role"]
    source = {"assistant": "agent", "system": "system"}.get(role, "user")
    step: dict[str, Any] = {"step_id": number, "source": source, "message": message.get("content") or ""}
    if source != "agent":
        return step
    if message.get("reasoning"):
        step["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        step["tool_calls"] = [
            {"tool_call_id": str(c.get("id") or f"call-{n}"), "function_name": c["name"], "arguments": arguments_of(c)}
            for n, c in enumerate(message["tool_calls"])
        ]
    piece = branch.sample.pieces[place]
    first = piece.start + piece.opener_length
    logprobs = branch.sample.behaviour_logprobs[first : piece.stop]
    step["metrics"] = {
        "prompt_tokens": int(first),
        "completion_tokens": int(piece.stop - first),
        "completion_token_ids": branch.sample.ids[first : piece.stop].tolist(),
        **({"logprobs": [float(value) for value in logprobs]} if not (logprobs != logprobs).any() else {}),
    }
    return step


def arguments_of(call: dict[str, Any]) -> dict[str, Any]:
    """ATIF wants an object; what the model wrote may be none."""
    import json

    try:
        value = json.loads(call.get("arguments") or "{}")
    except ValueError:
        value = call.get("arguments")
    return value if isinstance(value, dict) else {"raw": value}


def observe(step: dict[str, Any], message: Message) -> None:
    result = {"content": message.get("content") or ""}
    known = {call["tool_call_id"] for call in step.get("tool_calls", [])}
    if message.get("tool_call_id") in known:
        result["source_call_id"] = message["tool_call_id"]
    step.setdefault("observation", {"results": []})["results"].append(result)
