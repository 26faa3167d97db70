"""Which controller leads, and the fence around each of its acts.

From:  training.scheduling.controller, which leads or waits.
Holds: at most one owner at a time; each take-over raises the epoch; an act commits only if its owner still leads,
       because it locks the lease's row for as long as its transaction lasts and a take-over needs that row.
Never: trusts this machine's clock: expiry is compared with the database's.
"""

import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from training.models import Attempt, ControllerLease

log = logging.getLogger(__name__)
LEASE_S = 6.0


class Fenced(RuntimeError):
    """Another controller leads now. Whatever was begun was rolled back."""


def new_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(kw_only=True)
class Leadership:
    """`lead()` often; `act()` around every change."""

    owner: str = field(default_factory=new_owner)
    lease_s: float = LEASE_S
    epoch: int = 0
    """Of the last time this owner took the lead; 0: never."""

    def lead(self) -> bool:
        """Take the free lead, or keep it. Returns whether this owner leads."""
        ControllerLease.objects.get_or_create(name="controller")
        expiry = Now() + timedelta(seconds=self.lease_s)
        mine = ControllerLease.objects.filter(name="controller", owner=self.owner, epoch=self.epoch)
        if self.epoch and mine.update(expires_at=expiry):
            return True
        free = Q(expires_at__isnull=True) | Q(expires_at__lt=Now())
        taken = ControllerLease.objects.filter(free, name="controller").update(
            owner=self.owner, epoch=F("epoch") + 1, expires_at=expiry
        )
        if taken:
            self.epoch = ControllerLease.objects.get(name="controller", owner=self.owner).epoch
            log.info("leading", extra={"owner": self.owner, "epoch": self.epoch})
        elif self.epoch:
            log.warning("no longer leading", extra={"owner": self.owner, "epoch": self.epoch})
            self.epoch = 0
        return bool(taken)

    @contextlib.contextmanager
    def act(self, attempt_id: UUID) -> Iterator[Attempt]:
        """One transaction with the lead and the attempt's row locked; yields the attempt as it is now.

        Raises Fenced if this owner no longer leads; nothing is changed then.
        """
        with transaction.atomic():
            renewed = ControllerLease.objects.filter(name="controller", owner=self.owner, epoch=self.epoch).update(
                expires_at=Now() + timedelta(seconds=self.lease_s)
            )
            if not renewed:
                raise Fenced(f"{self.owner} no longer leads (its epoch was {self.epoch}).")
            yield Attempt.objects.select_for_update(no_key=True).get(pk=attempt_id)

    def resign(self) -> None:
        """Let another take the lead at once."""
        ControllerLease.objects.filter(name="controller", owner=self.owner, epoch=self.epoch).update(expires_at=None)
        self.epoch = 0
