"""Demonstrations: ordinary rollouts whose answers a scripted expert gives, for the warm start to imitate.

From:  training.scheduling.attempts, once, when an attempt starts.
To:    an Engine row `expert://<harness program>` in a pool of its own, and all demonstration rollouts, in the same
       transaction as the attempt's state WARMING: a trainer that sees the state sees every rollout that it waits for.
"""

from environments.models import Engine, Rollout, Task
from training.events import record_event
from training.kinds import has_online_phase
from training.models import Attempt
from training.scheduling.dispatch import Cast, dispatch_rollout, load_task_order
from training.scheduling.leadership import Leadership


def expert_pool(attempt: Attempt) -> str:
    return f"{attempt.pool}-expert"


def start_warming(leadership: Leadership, cast: Cast) -> None:
    """One act: expert engine, demonstrations, state WARMING."""
    with leadership.act(cast.attempt.id) as attempt:
        if attempt.state != Attempt.State.QUEUED:
            return
        count = cast.config.warm_start.demonstrations if has_online_phase(cast.config) else 0
        if count:
            _dispatch_demonstrations(cast, attempt, count)
        attempt.state = Attempt.State.WARMING
        attempt.save(update_fields=["state"])


def _dispatch_demonstrations(cast: Cast, attempt: Attempt, count: int) -> None:
    Engine.objects.create(
        pool=expert_pool(attempt),
        name="scripted expert",
        base_url=f"expert://{cast.harness.program}",
        model_name=cast.model.name,
        state=Engine.State.SERVING,
        version=-1,
    )
    order = load_task_order(cast.config, Task.Split.TRAIN, "demonstrations")
    chosen = [order[number] for number in range(count)]
    tasks = Task.objects.in_bulk(chosen)
    by_id = {str(pk): task for pk, task in tasks.items()}
    for task_id in chosen:
        dispatch_rollout(
            cast,
            task=by_id[task_id],
            purpose=Rollout.Purpose.DEMONSTRATION,
            pool=expert_pool(attempt),
            sampling=cast.config.sampling,
        )
    families = len({task.family for task in tasks.values()})
    record_event(
        attempt,
        "demonstrations_started",
        f"{count} demonstrations of {families} families were dispatched: a scripted expert plays the tasks' solutions.",
        count=count,
    )


def count_demonstrations(attempt: Attempt) -> tuple[int, int, int]:
    """(all, ended, solved)"""
    rows = Rollout.objects.filter(pool=expert_pool(attempt), purpose=Rollout.Purpose.DEMONSTRATION)
    ended = rows.filter(state=Rollout.State.ENDED)
    return rows.count(), ended.count(), ended.filter(reward__gt=0).count()


def end_expert(attempt: Attempt) -> None:
    Engine.objects.filter(pool=expert_pool(attempt)).update(state=Engine.State.STOPPED)
