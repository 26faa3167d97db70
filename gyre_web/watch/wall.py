"""All live rollouts of a run, each with the tail of what it samples now.

From:  Postgres (which rollouts live) and environments.live (what they sample).
To:    gyre_web.watch.views, as JSON for static/js/watch/wall_data.js.
Never: writes.
"""

import asyncio
from typing import Any

from asgiref.sync import async_to_sync
from django.db.models import Q

from environments import live
from environments.models import Engine, Rollout
from training.models import Run

TAIL_ENTRIES = 200
MAX_CELLS = 400


def load_wall(run: Run) -> dict[str, Any]:
    """Live rollouts, oldest first, so that cells keep their place; `total` counts beyond the limit."""
    pools = Q()
    attempt_ids = [str(pk) for pk in run.attempts.values_list("pk", flat=True)]
    for attempt_id in attempt_ids:
        pools |= Q(pool__startswith=f"attempt-{attempt_id}")
    if not attempt_ids:
        return {"attempts": [], "total": 0, "cells": []}
    alive = Rollout.objects.filter(pools).exclude(state=Rollout.State.ENDED).select_related("task", "harness")
    rollouts = list(alive.order_by("created_at")[:MAX_CELLS])
    tails = async_to_sync(read_tails)([rollout.pk for rollout in rollouts])
    engines = {str(pk): name for pk, name in Engine.objects.filter(pools).values_list("pk", "name")}
    cells = [{**describe_cell(rollout), **tail} for rollout, tail in zip(rollouts, tails, strict=True)]
    total = len(cells) if len(cells) < MAX_CELLS else alive.count()
    return {"attempts": attempt_ids, "total": total, "cells": cells, "engines": engines}


def describe_cell(rollout: Rollout) -> dict[str, Any]:
    return {
        "id": str(rollout.pk),
        "task": rollout.task.name,
        "harness": rollout.harness.name,
        "purpose": rollout.purpose,
        "state": rollout.state,
        "created_at": rollout.created_at,
        "started_at": rollout.started_at,
        "last_activity_at": rollout.last_activity_at,
        "num_calls": rollout.num_calls,
        "sampled_tokens": rollout.sampled_tokens,
        "error": rollout.error,
    }


async def read_tails(rollout_ids: list[Any]) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(read_tail(rollout_id) for rollout_id in rollout_ids)))


async def read_tail(rollout_id: Any) -> dict[str, Any]:
    """The log's last entries; a cell shows their texts and goes on from `position`."""
    head = await live.head(rollout_id)
    if head is None:
        return {"position": None, "tail": []}
    after = (head[0], max(0, head[1] - TAIL_ENTRIES)) if head[1] > TAIL_ENTRIES else None
    page = await live.read(rollout_id, after, TAIL_ENTRIES)
    entries = [e for e in page.entries if (e.epoch, e.n) <= head]
    return {"position": list(head), "tail": [[e.epoch, e.n, e.kind, wall_data(e)] for e in entries]}


def wall_data(entry: live.Entry) -> dict[str, Any]:
    """What a cell needs of an event; messages and ids stay behind."""
    keys = ("call", "state", "start", "texts", "version", "engines", "branch_role", "index", "error", "hold_reason")
    data = {key: entry.data[key] for key in keys if key in entry.data}
    if entry.kind == "output":
        data["text"] = str(entry.data.get("text", ""))[-400:]
    return data
