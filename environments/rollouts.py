"""The life of one rollout, start to reward.

From:  environments.jobs (Celery), `create_rollout` by training and commands.
To:    the Rollout row, its sandboxes, the live log; the gateway records the calls meanwhile.
Holds: one driver at a time (environments.leases). The row and the sandbox say where a rollout is, so a driver that
       dies at any line is followed by another that goes on from there (environments.life): the harness does not notice.
       When a rollout has ended, nothing of its sandboxes is left.
Never: holds a database connection while it waits, decides what training does with the result.

    QUEUED -> STARTING (sandbox, session) -> RUNNING (until the harness has ended) -> VERIFYING -> ENDED
"""

import logging
import threading
from datetime import timedelta
from functools import cache
from uuid import UUID

import redis
from django.conf import settings
from django.db import close_old_connections, connection
from django.db.models import Q
from django.utils import timezone

from environments import leases
from environments.config import Budgets, Sampling
from environments.leases import LeaseLost
from environments.life import Elsewhere, Life, tell
from environments.models import Harness, Model, Outcome, Rollout, Task
from environments.verification import Interrupted

ENQUEUED_S = 60
"""A rollout in the queue is not enqueued again for so long."""

logger = logging.getLogger(__name__)


def create_rollout(
    *,
    task: Task,
    model: Model,
    harness: Harness,
    purpose: str,
    pool: str,
    sampling: Sampling,
    budgets: Budgets,
    sandboxing: str = Rollout.Sandboxing.AUTO,
) -> Rollout:
    """A queued rollout; `enqueue_rollout` gets it driven."""
    return Rollout.objects.create(
        task=task,
        model=model,
        harness=harness,
        purpose=purpose,
        pool=pool,
        sandboxing=sandboxing,
        sampling=sampling.model_dump(mode="json"),
        budgets=budgets.model_dump(mode="json"),
    )


def enqueue_rollout(rollout_id: UUID) -> None:
    """Ask a worker to drive it. Asking twice is harmless."""
    from environments.jobs import run_rollout as job

    _valkey().set(_queue_key(rollout_id), 1, ex=ENQUEUED_S)
    job.delay(str(rollout_id))


def requeue_lost_rollouts() -> int:
    """Enqueue what should be driven and is not: its job, or its driver, was lost. Returns how many."""
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    lost = Rollout.objects.filter(free, created_at__lt=now - timedelta(seconds=2)).exclude(state=Rollout.State.ENDED)
    ids = list(lost.order_by("created_at").values_list("pk", flat=True)[:1000])
    waiting = _valkey().mget([_queue_key(pk) for pk in ids]) if ids else []
    unqueued = [pk for pk, mark in zip(ids, waiting, strict=True) if mark is None]
    for pk in unqueued:
        enqueue_rollout(pk)
    return len(unqueued)


def request_cancel(rollout_id: UUID) -> None:
    """End it without a score; one that nobody drives yet ends here."""
    now = timezone.now()
    Rollout.objects.filter(pk=rollout_id, cancel_requested_at=None).update(cancel_requested_at=now)
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    queued = Rollout.objects.filter(free, pk=rollout_id, state=Rollout.State.QUEUED)
    if queued.update(state=Rollout.State.ENDED, outcome=Outcome.CANCELLED, ended_at=now):
        tell(rollout_id, state=Rollout.State.ENDED, outcome=Outcome.CANCELLED)


def run_rollout(rollout_id: UUID, *, owner: str, stop: threading.Event) -> None:
    """Drive it to its end, from wherever it is. Returns at once where another driver has it or it has ended.

    When `stop` is set: returns soon, the lease given back and the sandbox running, for the next driver.
    """
    _valkey().delete(_queue_key(rollout_id))
    close_old_connections()
    lease = leases.take(rollout_id, owner)
    if lease is None:
        return
    try:
        Life(lease, stop).run()
    except (Interrupted, Elsewhere):
        leases.give_back(lease)
    except LeaseLost as error:
        logger.warning("a rollout was taken over", extra={"rollout": str(rollout_id), "error": str(error)})
    finally:
        leases.WATCH.forget(lease)
        connection.close()


def _queue_key(rollout_id: UUID) -> str:
    return f"gyre:queued:{rollout_id}"


@cache
def _valkey() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL)
