"""Leases of rollouts: who may drive one, for how long, and what others wrote on its row meanwhile.

From:  environments.rollouts; one process drives many rollouts in threads.
To:    the lease columns of Rollout. Every write of a driver goes through `update`, which a lost lease refuses.
Holds: a take-over raises the epoch; (owner, epoch) together are compared at every write, so a driver that was
       taken for dead can change nothing any more.
Never: keeps a thread or a database connection of its own. Whichever driver polls first after LOOK_S looks for all
       rollouts of the process in one query; a rollout whose driver does not poll is not renewed.
"""

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection
from django.db.models import F, Q
from django.utils import timezone

from environments.models import Rollout

LEASE_S = 20.0
RENEW_S = 5.0
LOOK_S = 0.5
SILENT_S = 10.0
"""A driver that did not poll for this long gets no more renewals."""

logger = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another driver has the rollout now; touch nothing of it any more."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    rollout_id: UUID
    owner: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the row said at the last look."""

    ending: str = ""
    cancel_requested: bool = False
    last_activity_at: datetime | None = None


def take(rollout_id: UUID, owner: str) -> Lease | None:
    """The lease of a rollout that has not ended and that nobody drives; else None."""
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    taken = (
        Rollout.objects.filter(free, pk=rollout_id)
        .exclude(state=Rollout.State.ENDED)
        .update(lease_owner=owner, lease_epoch=F("lease_epoch") + 1, lease_expires_at=now + timedelta(seconds=LEASE_S))
    )
    if not taken:
        return None
    epoch = Rollout.objects.values_list("lease_epoch", flat=True).get(pk=rollout_id)
    return Lease(rollout_id=rollout_id, owner=owner, epoch=epoch)


def update(lease: Lease, **fields: Any) -> None:
    """Write fields of the row. Raises LeaseLost."""
    held = Rollout.objects.filter(pk=lease.rollout_id, lease_owner=lease.owner, lease_epoch=lease.epoch)
    if not held.update(**fields):
        raise LeaseLost(f"rollout {lease.rollout_id}: epoch {lease.epoch} of {lease.owner} is over")


def give_back(lease: Lease) -> None:
    """Let the next driver have it at once. A lease that is lost already stays so."""
    held = Rollout.objects.filter(pk=lease.rollout_id, lease_owner=lease.owner, lease_epoch=lease.epoch)
    held.update(lease_owner="", lease_expires_at=None)


@dataclass(kw_only=True)
class _Watched:
    lease: Lease
    polled_at: float
    seen: Seen = field(default_factory=Seen)
    is_lost: bool = False


class Watch:
    """The rollouts that this process drives, looked at and renewed together."""

    def __init__(self) -> None:
        self._watched: dict[Lease, _Watched] = {}
        self._guard = threading.Lock()
        self._looking = threading.Lock()
        self._looked_at = 0.0
        self._renewed_at = 0.0

    def look(self, lease: Lease) -> Seen:
        """What the row said, at most LOOK_S old (older while the database is away). Raises LeaseLost."""
        now = time.monotonic()
        with self._guard:
            watched = self._watched.setdefault(lease, _Watched(lease=lease, polled_at=now))
            watched.polled_at = now
            is_due = now - self._looked_at >= LOOK_S
        if is_due and self._looking.acquire(blocking=False):
            try:
                self._refresh(now)
            finally:
                self._looking.release()
        if watched.is_lost:
            raise LeaseLost(f"rollout {lease.rollout_id} was taken over")
        return watched.seen

    def forget(self, lease: Lease) -> None:
        with self._guard:
            self._watched.pop(lease, None)

    def _refresh(self, now: float) -> None:
        self._looked_at = now
        with self._guard:
            watched = list(self._watched.values())
        try:
            self._read(watched)
            if now - self._renewed_at >= RENEW_S:
                self._renew([item for item in watched if now - item.polled_at < SILENT_S and not item.is_lost])
                self._renewed_at = now
        except (OperationalError, InterfaceError) as error:
            logger.warning("leases could not be looked at; trying again", extra={"error": str(error)})
        finally:
            connection.close()

    def _read(self, watched: list[_Watched]) -> None:
        columns = ("id", "lease_owner", "lease_epoch", "ending", "cancel_requested_at", "last_activity_at")
        ids = {item.lease.rollout_id for item in watched}
        rows = {row[0]: row[1:] for row in Rollout.objects.filter(pk__in=ids).values_list(*columns)}
        for item in watched:
            row = rows.get(item.lease.rollout_id)
            if row is None or row[:2] != (item.lease.owner, item.lease.epoch):
                item.is_lost = True
                continue
            item.seen = Seen(ending=row[2], cancel_requested=row[3] is not None, last_activity_at=row[4])

    def _renew(self, watched: list[_Watched]) -> None:
        by_owner: defaultdict[str, list[UUID]] = defaultdict(list)
        for item in watched:
            by_owner[item.lease.owner].append(item.lease.rollout_id)
        expires_at = timezone.now() + timedelta(seconds=LEASE_S)
        for owner, ids in by_owner.items():
            driven = Rollout.objects.filter(pk__in=ids, lease_owner=owner).exclude(state=Rollout.State.ENDED)
            driven.update(lease_expires_at=expires_at)  # one that ended meanwhile has no lease any more


WATCH = Watch()
