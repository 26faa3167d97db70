"""The lease of a cell: who supervises it; and how patiently its processes are started again.

From:  training.cells.
Holds: one holder at a time, by the database's clock; it is renewed from a thread, also while an engine starts.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection
from django.db.models import Q
from django.db.models.functions import Now

from training.models import Cell

LEASE_S = 15.0
RENEW_S = 4.0
CALM_AFTER_S = 120.0
"""A process that lived this long has not failed in a row."""
BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 30.0)


class LeaseLost(Exception):
    """Another supervisor has the cell now; touch nothing of it any more."""


def take_lease(cell_id: UUID, holder: str) -> bool:
    """False where somebody holds it, or it is down for good."""
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=Now())
    taken = (
        Cell.objects.filter(free, pk=cell_id)
        .exclude(role=Cell.Role.DOWN)
        .update(lease_owner=holder, lease_expires_at=Now() + timedelta(seconds=LEASE_S), host=socket.gethostname())
    )
    return bool(taken)


def _renew(cell_id: UUID, holder: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        with contextlib.suppress(OperationalError, InterfaceError):
            Cell.objects.filter(pk=cell_id, lease_owner=holder).update(
                lease_expires_at=Now() + timedelta(seconds=LEASE_S)
            )
        connection.close()


@contextlib.contextmanager
def renewed_lease(cell_id: UUID, holder: str) -> Iterator[None]:
    """Keep a lease that was taken for as long as the block lasts, then give it back."""
    ended = threading.Event()
    renewer = threading.Thread(target=_renew, args=(cell_id, holder, ended), name=f"lease-{cell_id}", daemon=True)
    renewer.start()
    try:
        yield
    finally:
        ended.set()
        renewer.join()
        with contextlib.suppress(OperationalError, InterfaceError):  # then it runs out
            Cell.objects.filter(pk=cell_id, lease_owner=holder).update(lease_owner="", lease_expires_at=None)


@dataclass(kw_only=True)
class Failures:
    """How often in a row a kind of process ended, and when it may be started again."""

    count: int = 0
    not_before: float = 0.0
    started: float = 0.0

    def note_start(self) -> None:
        self.started = time.monotonic()

    def note_end(self) -> None:
        calm = self.started and time.monotonic() - self.started > CALM_AFTER_S
        self.count = 1 if calm else self.count + 1
        self.not_before = time.monotonic() + BACKOFF_S[min(self.count, len(BACKOFF_S)) - 1]

    @property
    def must_wait(self) -> bool:
        return time.monotonic() < self.not_before
