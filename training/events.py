"""Tell people what happened: one RunEvent, and a ring at the doors of the run's open pages."""

import logging
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import RedisError

from training.models import Attempt, RunEvent

log = logging.getLogger(__name__)


def record_event(
    attempt: Attempt, kind: str, text: str, level: RunEvent.Level = RunEvent.Level.INFO, **data: Any
) -> RunEvent:
    """Write the event in the caller's transaction, so that it exists exactly when what it tells of does."""
    return RunEvent.objects.create(attempt=attempt, level=level, kind=kind, text=text, data=data)


def ring(attempt_id: UUID) -> None:
    """Say that the attempt changed. Lost rings are harmless: pages also reread on a timer."""
    try:
        from environments.live import ring_attempt_sync

        ring_attempt_sync(attempt_id)
    except ImportError:
        return
    except (RedisError, OSError, ImproperlyConfigured):
        log.warning("attempt change not announced", extra={"attempt": str(attempt_id)}, exc_info=True)
