"""Read what runs where: leader, cells, engines, workers, gateways, sandboxes, queues, and what waits for what.

From:  rows with their leases and heartbeats; queue lengths from Valkey.
Holds: a bounded number of queries; a service that does not answer is shown as such and breaks nothing else.
Never: asks processes; what they say about themselves is in their rows.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from django.conf import settings
from django.db.models import Avg, Count, Max, Q
from django.utils import timezone

from environments.models import Call, Engine, Rollout, Sandbox, Session
from training.models import Attempt, Cell, ControllerLease, Group, Member

FRESH = timedelta(seconds=60)
QUEUES = ("rollouts", "cells")


@dataclass(frozen=True, kw_only=True)
class Queue:
    """length: None when Valkey does not answer."""

    name: str
    length: int | None


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Something that waits, why, and since when."""

    what: str
    why: str
    number: int
    until: datetime | None = None
    address: str = ""


def load_leader() -> ControllerLease | None:
    return ControllerLease.objects.filter(name="controller").first()


def load_cells() -> list[Cell]:
    """Of attempts that go on, and any whose lease still runs."""
    going = [Attempt.State.COMPLETED, Attempt.State.STOPPED, Attempt.State.CANCELLED, Attempt.State.FAILED]
    return list(
        Cell.objects.filter(~Q(attempt__state__in=going) | Q(lease_expires_at__gt=timezone.now()))
        .select_related("attempt__run", "engine")
        .defer("history")
        .order_by("attempt__run__name", "index")
    )


def load_engines() -> list[Engine]:
    return list(
        Engine.objects.exclude(
            state__in=(Engine.State.STOPPED, Engine.State.FAILED), heartbeat_at__lt=timezone.now() - 10 * FRESH
        )
        .exclude(state=Engine.State.STOPPED)
        .order_by("pool", "turn_order", "name")[:100]
    )


def load_workers() -> list[dict[str, Any]]:
    """Who holds leases on rollouts: [{lease_owner, number, until}]."""
    rows = (
        Rollout.objects.exclude(state=Rollout.State.ENDED)
        .exclude(lease_owner="")
        .values("lease_owner")
        .annotate(number=Count("pk"), until=Max("lease_expires_at"))
        .order_by("lease_owner")
    )
    return [dict(row) for row in rows]


def load_gateways() -> list[dict[str, Any]]:
    """Who holds sessions: [{gateway, number, until}]."""
    rows = (
        Session.objects.filter(finished_at=None)
        .exclude(gateway="")
        .values("gateway")
        .annotate(number=Count("pk"), until=Max("gateway_expires_at"))
        .order_by("gateway")
    )
    return [dict(row) for row in rows]


def load_calls() -> dict[str, Any]:
    """Of the last minute: number of calls, mean seconds to the first token and held; and how many are open."""
    since = timezone.now() - timedelta(seconds=60)
    recent = Call.objects.filter(started_at__gte=since).aggregate(
        number=Count("pk"),
        first_token_s=Avg("first_token_s"),
        held_s=Avg("held_s"),
        failed=Count("pk", filter=Q(state="failed")),
    )
    live = Call.objects.filter(state=Call.State.OPEN, rollout__state=Rollout.State.RUNNING).count()
    return {**recent, "per_s": recent["number"] / 60, "open": live}


def load_sandboxes() -> list[Sandbox]:
    """Open ones, those whose lease runs out first in front: an orphan leads the list."""
    return list(
        Sandbox.objects.filter(stopped_at=None).select_related("rollout__task", "rollout__member__group__attempt__run").defer(
            "rollout__harness_output", "rollout__diff", "rollout__verifier_log", "rollout__member__token_stats"
        ).order_by("lease_expires_at")[:200]
    )  # fmt: skip


def count_sandboxes() -> dict[str, int]:
    """Open ones: total, by kind, prepared for whoever comes, and those whose lease ran out; on how many hosts."""
    kinds = {kind: Count("pk", filter=Q(kind=kind)) for kind in Sandbox.Kind.values}
    return Sandbox.objects.filter(stopped_at=None).aggregate(
        total=Count("pk"),
        warm=Count("pk", filter=Q(purpose=Sandbox.Purpose.WARM)),
        orphans=Count("pk", filter=Q(lease_expires_at__lt=timezone.now())),
        hosts=Count("host", distinct=True),
        **kinds,
    )


def load_queues() -> list[Queue]:
    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
        return [Queue(name=name, length=int(client.llen(name))) for name in QUEUES]
    except (redis.RedisError, OSError, ValueError):
        return [Queue(name=name, length=None) for name in QUEUES]


def load_holds() -> list[Hold]:
    """Everything that waits, with its reason: members for people, groups, rollouts for a worker, engines."""
    holds = [
        Hold(
            what=f"{row['number']} rollouts of {row['group__attempt__run__name']}",
            why=row["hold_reason"] or "held for review",
            number=row["number"],
            until=row["until"],
        )
        for row in Member.objects.filter(hold=True)
        .exclude(group__state__in=(Group.State.EATEN, Group.State.EXCLUDED))
        .values("group__attempt__run__name", "hold_reason")
        .annotate(number=Count("pk"), until=Max("hold_until"))
        .order_by("-number")
    ]
    queued = Rollout.objects.filter(state=Rollout.State.QUEUED).count()
    if queued:
        holds.append(Hold(what=f"{queued} rollouts", why="queued: every worker thread is busy", number=queued))
    holds += [
        Hold(what=f"engine {engine.name}", why=engine.state_reason or str(engine.get_state_display()), number=1)
        for engine in Engine.objects.filter(state__in=(Engine.State.HOLDING, Engine.State.DRAINING))
    ]
    holds += [
        Hold(what=f"{attempt.run.name}", why=attempt.state_reason or "paused by a person", number=1)
        for attempt in Attempt.objects.filter(state=Attempt.State.PAUSED).select_related("run")
    ]
    return holds
