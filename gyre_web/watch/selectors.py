"""What the rollout page reads: a small snapshot, windows of nodes, search, timeline, the rebuilt request.

From:  Postgres (the record) and environments.live (what is not committed yet).
To:    gyre_web.watch.views, as JSON.
Holds: a snapshot's live position is read *before* its rows, so events after it can only repeat what the rows
       already say, never miss anything; without token ids, so a rollout of a million tokens stays small.
Never: writes.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db.models import F, Func, IntegerField, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, Concat
from django.forms.models import model_to_dict

from environments import live
from environments.models import Call, Rollout
from gyre_web.watch.tokens import num_tokens_of
from training.models import Member

WINDOW_NODES = 40
CUT_CHARS = 20_000
TAIL_PAGE = 1000
TAIL_PAGES = 8
FIND_LIMIT = 500
TAIL_KINDS = ("tokens", "output", "verifier")


class OctetLength(Func):
    """Bytes of a bytea column, without reading the column."""

    function = "octet_length"
    output_field = IntegerField()


@dataclass(frozen=True, kw_only=True)
class LogTail:
    position: tuple[int, int] | None
    entries: list[live.Entry]
    whole: bool
    """The tail reaches back to the log's first entry."""


def load_rollout(rollout_id: UUID) -> Rollout | None:
    related = ("task__taskset", "model", "harness", "forked_from", "member__group__attempt__run")
    return Rollout.objects.select_related(*related).filter(pk=rollout_id).first()


def build_snapshot(rollout: Rollout, *, at: int | None = None) -> dict[str, Any]:
    """Everything `rollout_data.js` starts from: the tree in columns, messages around node `at` (None: the end)."""
    open_calls = [str(pk) for pk in rollout.calls.filter(state=Call.State.OPEN).values_list("pk", flat=True)]
    tail = async_to_sync(read_tail)(rollout.pk, set(open_calls))
    rollout.refresh_from_db()
    columns = build_columns(rollout)
    num_nodes = len(columns["parent"])
    middle = num_nodes if at is None else min(max(at, 0), num_nodes)
    first = max(0, middle - WINDOW_NODES)
    return {
        "rollout": describe_rollout(rollout),
        "columns": columns,
        "calls": [describe_call(call) for call in rollout.calls.order_by("index")],
        "messages": load_messages(rollout, first, first + 2 * WINDOW_NODES),
        "tail": [[entry.epoch, entry.n, entry.kind, entry.data] for entry in tail.entries],
        "tail_whole": tail.whole,
        "position": list(tail.position) if tail.position else None,
    }


async def read_tail(rollout_id: UUID, open_calls: set[str]) -> LogTail:
    """The log's last entries that Postgres does not have yet: back to where every open call began to sample."""
    head = await live.head(rollout_id)
    if head is None:
        return LogTail(position=None, entries=[], whole=True)
    epoch, end = head
    entries: list[live.Entry] = []
    missing = set(open_calls)
    for _ in range(TAIL_PAGES):
        start = max(0, end - TAIL_PAGE)
        page = await live.read(rollout_id, (epoch, start) if start else None, TAIL_PAGE)
        found = [entry for entry in page.entries if entry.epoch == epoch and start < entry.n <= end]
        entries = found + entries
        missing -= {e.data.get("call") for e in found if e.kind == "tokens" and e.data.get("start") == 0}
        trimmed = not found or found[0].n > start + 1
        if start == 0 or trimmed:
            return LogTail(position=head, entries=tail_entries(entries), whole=start == 0 and not trimmed)
        if not missing and len(entries) >= 2 * TAIL_PAGE:
            break
        end = start
    return LogTail(position=head, entries=tail_entries(entries), whole=False)


def tail_entries(entries: list[live.Entry]) -> list[live.Entry]:
    return [entry for entry in entries if entry.kind in TAIL_KINDS]


def build_columns(rollout: Rollout) -> dict[str, Any]:
    """The tree, one array a property, position = node index (dense): about 30 bytes a node."""
    fields = (
        "parent", "role", "branch_role", "sampled", "trainable", "depth_tokens", "opener_length",
        "version_spans", "flags",
    )  # fmt: skip
    rows = list(
        rollout.nodes.order_by("index")
        .annotate(id_bytes=OctetLength(F("ids")))
        .values_list("index", "id_bytes", *fields)
    )
    columns: dict[str, Any] = {name: [row[i + 2] for row in rows] for i, name in enumerate(fields)}
    columns["index"] = [row[0] for row in rows]
    columns["num_tokens"] = [num_tokens_of(row[1]) for row in rows]
    answers = rollout.calls.exclude(answer_node=None).values_list("answer_node", "pk")
    call_of = {node: str(pk) for node, pk in answers}
    columns["call"] = [call_of.get(index) for index in columns["index"]]
    return columns


def load_messages(rollout: Rollout, first: int, end: int) -> dict[str, Any]:
    """{node index: message}; texts beyond CUT_CHARS are cut, with the whole length in `cut`."""
    rows = rollout.nodes.filter(index__gte=first, index__lt=end).order_by("index").values_list("index", "message")
    return {str(index): cut_message(message) for index, message in rows}


def cut_message(message: dict[str, Any]) -> dict[str, Any]:
    cut = {k: len(v) for k, v in message.items() if isinstance(v, str) and len(v) > CUT_CHARS}
    if not cut:
        return message
    return {**message, **{key: message[key][:CUT_CHARS] for key in cut}, "cut": cut}


def describe_rollout(rollout: Rollout) -> dict[str, Any]:
    member = load_member(rollout)
    return {
        "id": str(rollout.pk),
        "task": rollout.task.name,
        "taskset": rollout.task.taskset.name,
        "instruction": rollout.task.instruction,
        "harness": rollout.harness.name,
        "model": rollout.model.name,
        "purpose": rollout.purpose,
        "state": rollout.state,
        "outcome": rollout.outcome,
        "reward": rollout.reward,
        "error": rollout.error,
        "reward_parts": rollout.reward_parts,
        "flags": rollout.flags,
        "exit_code": rollout.exit_code,
        "verifier_trials": rollout.verifier_trials,
        "budgets": rollout.budgets,
        "sampling": rollout.sampling,
        "drift": rollout.drift,
        "created_at": rollout.created_at,
        "started_at": rollout.started_at,
        "ended_at": rollout.ended_at,
        "member": describe_member(member) if member else None,
    }


def load_member(rollout: Rollout) -> Member | None:
    return Member.objects.select_related("group__attempt__run").defer("token_stats").filter(rollout=rollout).first()


def describe_member(member: Member) -> dict[str, Any]:
    return {
        "group": str(member.group_id),
        "group_index": member.group.index,
        "group_state": member.group.state,
        "run": str(member.group.attempt.run_id),
        "run_name": member.group.attempt.run.name,
        "slot": member.slot,
        "effective_reward": member.effective_reward,
        "include": member.include,
        "hold": member.hold,
        "hold_reason": member.hold_reason,
        "disposition": member.disposition,
        "reason": member.reason,
        "advantage": member.advantage,
        "staleness": member.staleness,
    }


def describe_call(call: Call) -> dict[str, Any]:
    """The same fields as a `call` event of the live log, so that both apply alike."""
    return {
        "call": str(call.pk),
        "index": call.index,
        "state": call.state,
        "dialect": call.dialect,
        "streamed": call.streamed,
        "retry_of": str(call.retry_of_id) if call.retry_of_id else None,
        "replay_of": str(call.replay_of_id) if call.replay_of_id else None,
        "drift": call.drift,
        "prompt_node": call.prompt_node,
        "num_prompt_tokens": call.num_prompt_tokens,
        "finish_reason": call.finish_reason,
        "error": call.error,
        "engines": call.engines,
        "first_token_s": call.first_token_s,
        "duration_s": call.duration_s,
        "held_s": call.held_s,
    }


def build_timeline(rollout: Rollout) -> dict[str, Any]:
    """Absolute times in ms since the epoch: of the rollout, of its calls, of its nodes."""

    def ms(value: Any) -> float | None:
        return value.timestamp() * 1000 if value else None

    return {
        "rollout": {
            name: ms(getattr(rollout, name)) for name in ("created_at", "started_at", "harness_ended_at", "ended_at")
        },
        "state": rollout.state,
        "calls": [
            {**describe_call(call), "started_at": ms(call.started_at), "answer_node": call.answer_node,
             "num_sampled_tokens": call.num_sampled_tokens, "num_cached_tokens": call.num_cached_tokens}
            for call in rollout.calls.order_by("index")
        ],
    }  # fmt: skip


def find_nodes(rollout: Rollout, text: str) -> dict[str, Any]:
    """Nodes whose message holds `text` (case-insensitive), in order; `total` counts beyond the limit."""
    keys = ("content", "reasoning", "tool_calls")
    parts = [Coalesce(KeyTextTransform(key, "message"), Value(""), output_field=TextField()) for key in keys]
    joined = Concat(parts[0], Value("\n"), parts[1], Value("\n"), parts[2], output_field=TextField())
    matching = rollout.nodes.annotate(text=joined).filter(text__icontains=text).order_by("index")
    position = Func(
        Func(F("text"), function="lower"), Value(text.lower()), function="strpos", output_field=IntegerField()
    )
    snippet = Func(
        F("text"),
        Func(position - 40, Value(1), function="greatest"),
        Value(120 + len(text)),
        function="substr",
        output_field=TextField(),
    )
    rows = list(matching.annotate(snippet=snippet).values_list("index", "role", "snippet")[:FIND_LIMIT])
    total = len(rows) if len(rows) < FIND_LIMIT else matching.count()
    return {"total": total, "hits": [{"index": i, "role": role, "snippet": cut} for i, role, cut in rows]}


def path_to(rollout: Rollout, index: int | None) -> list[int]:
    """Node indexes from the root to `index`."""
    parents = dict(rollout.nodes.values_list("index", "parent"))
    path: list[int] = []
    while index is not None and index in parents:
        path.append(index)
        index = parents[index]
    return path[::-1]


def rebuild_request(call: Call) -> dict[str, Any]:
    """What the harness asked, put together from the record. It is not the bytes that were sent."""
    path = path_to(call.rollout, call.prompt_node)
    messages = dict(call.rollout.nodes.filter(index__in=path).values_list("index", "message"))
    return {
        "rebuilt": True,
        "note": "Rebuilt from the record: same messages and settings, not the bytes that the harness sent.",
        "dialect": call.dialect,
        "messages": [messages[index] for index in path],
        "requested": call.requested,
        "imposed": call.imposed,
        "unknown": call.unknown,
    }


def load_raw(rollout: Rollout, first: int, count: int) -> dict[str, Any]:
    """The record itself: the rollout's row, and a window of its nodes and calls with ids and logprobs."""
    from gyre_web.watch.tokens import float_list, id_list

    nodes = rollout.nodes.filter(index__gte=first, index__lt=first + count).order_by("index")
    row = model_to_dict(rollout, exclude=["harness_output", "diff", "verifier_log", "lease_owner"])
    return {
        "rollout": {"id": rollout.pk, **row},
        "first": first,
        "num_nodes": rollout.nodes.count(),
        "nodes": [
            {**model_to_dict(node, exclude=["id", "rollout", "ids", "key", "behaviour_logprobs"]),
             "key": bytes(node.key).hex(), "ids": id_list(node.ids),
             "behaviour_logprobs": float_list(node.behaviour_logprobs)}
            for node in nodes
        ],
        "calls": [
            {"id": call.pk, **model_to_dict(call, exclude=["digest", "rollout", "session", "relay_call"])}
            for call in rollout.calls.filter(Q(answer_node__gte=first, answer_node__lt=first + count))
        ],
    }  # fmt: skip


def neighbours(rollout: Rollout) -> dict[str, str | None]:
    """The rollouts before and after it in its pool (keys h and l)."""
    same: QuerySet[Rollout] = Rollout.objects.filter(pool=rollout.pool).exclude(pk=rollout.pk)
    before = same.filter(created_at__lte=rollout.created_at).order_by("-created_at").values_list("pk", flat=True)
    after = same.filter(created_at__gt=rollout.created_at).order_by("created_at").values_list("pk", flat=True)
    previous, following = before.first(), after.first()
    return {"previous": str(previous) if previous else None, "next": str(following) if following else None}


def load_terminal(rollout: Rollout) -> dict[str, Any]:
    """The harness's whole terminal: from the row once it was kept, before that from the live log."""
    if rollout.harness_output:
        return {"source": "record", "text": rollout.harness_output, "position": None}
    chunks, position, whole = async_to_sync(read_texts)(rollout.pk, "output")
    return {"source": "live", "text": "".join(chunks), "position": position, "whole": whole}


async def read_texts(rollout_id: UUID, kind: str) -> tuple[list[str], list[int] | None, bool]:
    """All texts of a kind in the live log, the position they reach, and whether the log has its beginning."""
    head = await live.head(rollout_id)
    chunks: list[str] = []
    after: tuple[int, int] | None = None
    whole = True
    while head is not None and (after is None or after < head):
        page = await live.read(rollout_id, after, TAIL_PAGE)
        if not page.entries:
            break
        if after is None:
            whole = page.entries[0].n == 1
        chunks += [str(e.data.get("text", "")) for e in page.entries if e.kind == kind and (e.epoch, e.n) <= head]
        after = (page.entries[-1].epoch, page.entries[-1].n)
    return chunks, list(head) if head else None, whole


def load_verifier(rollout: Rollout) -> dict[str, Any]:
    """The verifier's log and what it said; while it runs, its log comes from the live log."""
    common = {
        "state": rollout.state,
        "outcome": rollout.outcome,
        "reward": rollout.reward,
        "reward_parts": rollout.reward_parts,
        "trials": rollout.verifier_trials,
        "error": rollout.error,
    }
    if rollout.verifier_log or not rollout.is_live:
        return {**common, "source": "record", "text": rollout.verifier_log, "position": None}
    chunks, position, whole = async_to_sync(read_texts)(rollout.pk, "verifier")
    return {**common, "source": "live", "text": "".join(chunks), "position": position, "whole": whole}
