"""Celery jobs of this room: thin, they call environments.rollouts. A lost or doubled job is harmless (leases)."""

import os
import secrets
import socket
import threading
from functools import cache
from typing import Any
from uuid import UUID

from celery import shared_task
from celery.signals import worker_shutting_down

from environments import rollouts
from environments.models import Image

STOP = threading.Event()
"""Set when this worker is to end: its drivers give their leases back and leave the sandboxes running."""


@cache
def owner() -> str:
    """Who drives here: one name a process."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"[:100]


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_driving(**_: Any) -> None:
    STOP.set()


@shared_task(name="environments.jobs.make_image", ignore_result=True)  # type: ignore[untyped-decorator]
def make_image(image_id: str) -> None:
    from environments.images.wishes import make

    image = Image.objects.filter(pk=UUID(image_id)).first()
    if image is not None:
        make(image, STOP)


@shared_task(name="environments.jobs.run_rollout", ignore_result=True)  # type: ignore[untyped-decorator]
def run_rollout(rollout_id: str) -> None:
    rollouts.run_rollout(UUID(rollout_id), owner=owner(), stop=STOP)
