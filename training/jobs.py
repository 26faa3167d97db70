"""Celery jobs of this room: thin. A lost or doubled job is harmless: the cell's lease decides."""

import os
import secrets
import socket
import threading
from functools import cache
from typing import Any
from uuid import UUID

from celery import shared_task
from celery.signals import worker_shutting_down

STOP = threading.Event()
"""Set when this worker is to end: its cells give everything back."""


@cache
def owner() -> str:
    """Who supervises here: one name a process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"[:100]


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_supervising(**_: Any) -> None:
    STOP.set()


@shared_task(name="training.jobs.supervise_cell", ignore_result=True)  # type: ignore[untyped-decorator]
def supervise_cell(cell_id: str) -> None:
    """Keep one cell doing what is wanted of it, until it is told to go down or this worker ends."""
    from training.cells import supervise

    supervise(UUID(cell_id), owner=owner(), stop=STOP)


@shared_task(name="training.jobs.write_export", ignore_result=True)  # type: ignore[untyped-decorator]
def write_export(export_id: str) -> None:
    """Write one export's file, if nobody does."""
    from training.exports.writer import write_export as write

    write(UUID(export_id), owner=f"{owner()}:{secrets.token_hex(3)}"[:100])
