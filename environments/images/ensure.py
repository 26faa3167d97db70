"""Have a task's image on this host: one builder makes it, all others wait for it, everybody sees how it goes.

From:  environments.life, when a rollout starts; `manage.py images`; the page of an image (rebuild).
To:    the Image row, its lease and its log.
Holds: one builder an image and host; one that dies is followed by another after its lease. A failure is not tried
       again for RETRY_S, so that a group of rollouts does not fail the same build one after the other.
Never: holds a database connection while it waits.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q
from django.utils import timezone

from environments.images import base
from environments.images.build import (
    DOCKERFILE,
    build,
    context_digest,
    find_local,
    prepare_bases,
    pull,
    task_reference,
)
from environments.images.errors import ImageUnavailable
from environments.images.progress import LEASE_S, ImageLost, Progress
from environments.models import Image, Task
from environments.sandboxes.protocol import SandboxError

RETRY_S = 600.0
DEFAULT_BUILD_TIMEOUT_S = 600.0
POLL_S = 0.25

Pulse = Callable[[], None]

logger = logging.getLogger(__name__)


def want_image(task: Task) -> Image:
    """The row of the image that a task needs on this host. Raises ImageUnavailable."""
    settings: dict[str, Any] = task.settings.get("environment") or {}
    named = str(settings.get("docker_image") or "")
    if not named and not task.image.startswith("build:"):
        named = task.image
    if named.partition(":")[0] == base.NAME:
        return want_base()
    if named:
        return _row(named, Image.Origin.NAMED)
    context = Path(task.directory) / "environment"
    if not (context / DOCKERFILE).is_file():
        return want_base()
    row = _row(task_reference(context), Image.Origin.BUILT, context=str(context), digest=context_digest(context))
    _allow(row, float(settings.get("build_timeout_sec") or DEFAULT_BUILD_TIMEOUT_S))
    return row


def _allow(row: Image, timeout_s: float) -> None:
    """Tasks with the same context share its image, and the most patient of them counts. More time: a new try."""
    raised = Image.objects.filter(pk=row.pk, build_timeout_s__lt=timeout_s)
    if raised.update(build_timeout_s=timeout_s):
        Image.objects.filter(pk=row.pk, state=Image.State.FAILED).update(state=Image.State.WANTED)


def want_base() -> Image:
    return _row(base.base_reference(), Image.Origin.BASE, digest=base.recipe_digest())


def _row(reference: str, origin: Image.Origin, **fields: str) -> Image:
    row, _ = Image.objects.update_or_create(
        reference=reference,
        host=socket.gethostname(),
        defaults=fields | {"last_used_at": timezone.now()},
        create_defaults=fields | {"last_used_at": timezone.now(), "origin": origin},
    )
    return row


def rebuild(image: Image) -> bool:
    """Forget a failure, or a result: whoever wants it next makes it anew. False while it is being made."""
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=timezone.now())
    return bool(Image.objects.filter(free, pk=image.pk).update(state=Image.State.WANTED, error="", log="", image_id=""))


def ensure_image(image: Image, *, stop: threading.Event, keep_alive: Pulse = lambda: None) -> str:
    """The engine's id of an image that is here when this returns. Raises ImageUnavailable.

    keep_alive: called while it waits; what it raises ends the wait, not the making. stop: raises InterruptedError.
    """
    while True:
        row = Image.objects.get(pk=image.pk)
        if row.state == Image.State.READY and find_local(row.image_id) is not None:
            return row.image_id
        failed_at = row.built_at if row.state == Image.State.FAILED else None
        if failed_at is not None and timezone.now() - failed_at < timedelta(seconds=RETRY_S):
            raise ImageUnavailable(row.error)
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        if _take(row, owner):
            maker = threading.Thread(target=_make, args=(row.pk, owner), name="image-maker", daemon=True)
            maker.start()
        _wait(row.pk, stop, keep_alive)


def _wait(image: UUID, stop: threading.Event, keep_alive: Pulse) -> None:
    """While somebody makes it."""
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=timezone.now())
    while not Image.objects.filter(free, pk=image).exists():
        connection.close()
        keep_alive()
        if stop.wait(POLL_S):
            raise InterruptedError
        free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=timezone.now())


def _take(row: Image, owner: str) -> bool:
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    fields = {
        "lease_owner": owner,
        "lease_expires_at": now + timedelta(seconds=LEASE_S),
        "state": Image.State.BUILDING,
        "started_at": now,
        "log": "",
        "error": "",
    }
    unchanged = Image.objects.filter(free, pk=row.pk, state=row.state, started_at=row.started_at)
    return bool(unchanged.update(**fields))


def _make(image: UUID, owner: str) -> None:
    """In a thread of its own: whoever asked may be stopped, the making goes on."""
    progress = Progress(image, owner)
    try:
        result = _try_to_make(image, progress)
        progress.close()
        held = Image.objects.filter(pk=image, lease_owner=owner)
        held.update(log=progress.text, lease_expires_at=None, built_at=timezone.now(), **result)
    except ImageLost:
        logger.warning("an image was taken over by another builder", extra={"image": str(image)})
    finally:
        progress.close()
        connection.close()


def _try_to_make(image: UUID, progress: Progress) -> dict[str, Any]:
    """Fields of the row at the end. Raises ImageLost."""
    began = time.monotonic()
    row = Image.objects.get(pk=image)
    try:
        image_id = _make_one(row, progress)
        size = (find_local(image_id) or {}).get("Size")
    except (ImageUnavailable, SandboxError, OSError) as error:
        return {"state": Image.State.FAILED, "error": str(error)}
    except ImageLost:
        raise
    except Exception as error:
        logger.exception("an image could not be made", extra={"image": str(image)})
        return {"state": Image.State.FAILED, "error": f"The image cannot be made: {error!r}; the log has more."}
    progress.say(f"ready after {time.monotonic() - began:.1f} s")
    found = {"image_id": image_id, "size_bytes": size, "stand_ins": row.stand_ins, "is_pulled": row.is_pulled}
    return found | {"state": Image.State.READY}


def _make_one(row: Image, progress: Progress) -> str:
    if row.origin == Image.Origin.BASE:
        return base.make_base(row.reference, progress.say)
    if row.origin == Image.Origin.NAMED:
        found = find_local(row.reference)
        row.is_pulled = row.is_pulled or found is None
        return str(found["Id"]) if found else pull(row.reference, progress.say)
    context = Path(row.context)
    if context_digest(context) != row.digest:
        raise ImageUnavailable(f"{context} is not what it was when the task was added; add its task set again.")
    bases = prepare_bases((context / DOCKERFILE).read_text(), lambda: _ensure_base(progress), progress.say)
    row.stand_ins = {name: other for name, other in bases.stand_ins.items() if not name.startswith(base.NAME)}
    return build(context, row.reference, bases, row.build_timeout_s, progress.say)


def _ensure_base(progress: Progress) -> str:
    row = want_base()
    progress.say(f"waiting for {row.reference}")
    ensure_image(row, stop=progress.is_over)
    return row.reference
