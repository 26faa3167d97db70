"""What the review pages read: labels of a rollout, queues, their items and progress.

From:  Postgres.
To:    gyre_web.review.views, gyre_web.watch.views (labels on the rollout page).
Never: writes.
"""

from typing import Any

from django.db.models import Count, Q, QuerySet

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.review.models import Label, Queue
from gyre_web.runs.models import SavedFilter
from gyre_web.runs.rollout_filter import apply_filter, parse_filter


def describe_labels(rollout: Rollout) -> list[dict[str, Any]]:
    """Newest first; superseded ones too, marked."""
    return [describe_label(label) for label in rollout.labels.order_by("-created_at")]


def describe_label(label: Label) -> dict[str, Any]:
    return {
        "id": str(label.pk),
        "author": label.author_name,
        "verdict": label.verdict,
        "keep": label.keep,
        "reward": label.reward,
        "reason": label.reason,
        "note": label.note,
        "turns": label.turns,
        "effect": label.effect,
        "effect_text": label.get_effect_display(),
        "superseded": label.superseded_by_id is not None,
        "client_key": label.client_key,
        "created_at": label.created_at,
    }


def filter_rollouts(query: dict[str, Any], run_id: Any = None) -> QuerySet[Rollout]:
    """Ended rollouts that a saved filter means: the filter of the rollout tables, and `held` (waits for a person)."""
    rollouts = Rollout.objects.filter(state=Rollout.State.ENDED)
    if run_id:
        rollouts = rollouts.filter(member__group__attempt__run_id=run_id)
    if query.get("held"):
        rollouts = rollouts.filter(member__hold=True)
    return apply_filter(rollouts, parse_filter(query))


def queue_rollouts(queue: Queue) -> QuerySet[Rollout]:
    """The queue's items. What a reviewer already judged in it stays counted even where the filter changes."""
    return filter_rollouts(queue.filter.query, queue.filter.run_id)


def open_queues() -> QuerySet[Queue]:
    return Queue.objects.filter(closed_at=None).select_related("filter__run", "created_by")


def describe_queue(queue: Queue, reviewer: User) -> dict[str, Any]:
    """Progress: `done` items have all their reviewers; `mine` are this reviewer's."""
    rollouts = queue_rollouts(queue)
    finished = Count(
        "reservation", filter=Q(reservation__queue=queue, reservation__done_at__isnull=False), distinct=True
    )
    done = rollouts.annotate(finished=finished).filter(finished__gte=queue.reviewers_per_item).count()
    mine = queue.reservations.filter(reviewer=reviewer)
    total = rollouts.count()
    return {
        "queue": queue,
        "total": total,
        "done": done,
        "left": total - done,
        "share": round(100 * done / total) if total else 0,
        "mine": mine.exclude(done_at=None).count(),
        "skipped": mine.exclude(skipped_at=None).count(),
    }


def saved_filters(user: User) -> QuerySet[SavedFilter]:
    return SavedFilter.objects.select_related("run").order_by("name")
