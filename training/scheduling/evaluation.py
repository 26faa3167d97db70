"""Evaluate a version on held-out tasks that are the same for the whole run.

From:  training.scheduling.attempts, before the first group, every so many steps, and after the last.
To:    Version.evaluation["heldout"] and metrics of kind evaluation; while one goes on, nothing is trained.
Holds: each task is scored once a version; a rollout that could not be scored is done again at most twice, then the
       task counts as missing, never as failed.

Version.evaluation, worked example: {"heldout": {"state": "done", "tasks": ["t1", "t2"], "rollouts": {"t1": ["r1"],
"t2": ["r2", "r3"]}, "n": 2, "solved": 1, "rate": 0.5, "mean_reward": 0.5, "missing": 0}}; r2 was not scored.
"""

from typing import Any

from environments.models import Outcome, Rollout, Task
from training.config import RunConfig
from training.events import record_event
from training.models import Attempt, Metric, Version
from training.scheduling.dispatch import Cast, dispatch_rollout, load_task_order
from training.scheduling.leadership import Leadership
from training.scheduling.steps import due_version

MAX_TRIES = 3
SOLVED_FROM = 1.0
"""A task is solved when its reward is at least this."""


def choose_tasks(config: RunConfig) -> list[str]:
    """The held-out tasks of the run: the same for every version and every restart."""
    order = load_task_order(config, Task.Split.HELDOUT, "evaluation")
    chosen: list[str] = []
    number = 0
    while order.parts and len(chosen) < config.evaluation.tasks:
        if order[number] not in chosen:
            chosen.append(order[number])
        number += 1
    return chosen


def due_evaluation(attempt: Attempt, config: RunConfig) -> Version | None:
    """The published version that must be evaluated before anything else happens, if any."""
    if config.evaluation.tasks == 0 or attempt.version < due_version(attempt, config):
        return None
    version = Version.objects.filter(attempt=attempt, number=attempt.version, published_at__isnull=False).first()
    if version is None or version.evaluation.get("heldout", {}).get("state") == "done":
        return None
    is_first, is_last = version.number == 0, attempt.step == config.optimization.steps
    every = config.evaluation.every_steps
    is_between = every > 0 and version.step > 0 and version.step % every == 0
    return version if is_first or is_last or is_between else None


def advance_evaluation(leadership: Leadership, cast: Cast, number: int) -> None:
    """One act, where there is something to do: dispatch what is missing, as far as capacity allows; note the result
    when all is there.
    """
    version = Version.objects.get(attempt=cast.attempt, number=number)
    if not _has_work(cast, version.evaluation.get("heldout")):
        return
    with leadership.act(cast.attempt.id) as attempt:
        version = Version.objects.select_for_update(no_key=True).get(attempt=attempt, number=number)
        state = version.evaluation.get("heldout") or _begin(attempt, cast.config, number)
        rows = _load_rollouts(state)
        if attempt.wanted == Attempt.Wanted.RUN:
            _dispatch(cast, attempt, state, _missing(cast, state, rows))
        if _is_all_done(state, rows):
            _finish(attempt, version, state, rows)
        version.evaluation = {**version.evaluation, "heldout": state}
        version.save(update_fields=["evaluation"])


def _has_work(cast: Cast, state: dict[str, Any] | None) -> bool:
    if state is None:
        return True
    rows = _load_rollouts(state)
    may_dispatch = cast.attempt.wanted == Attempt.Wanted.RUN
    return _is_all_done(state, rows) or (may_dispatch and bool(_missing(cast, state, rows)))


def _begin(attempt: Attempt, config: RunConfig, number: int) -> dict[str, Any]:
    tasks = choose_tasks(config)
    record_event(
        attempt, "evaluation_started", f"Version {number} is tried on {len(tasks)} held-out tasks.", version=number
    )
    return {"state": "running", "tasks": tasks, "rollouts": {}}


Row = tuple[str, str, float | None]
"""state, outcome, reward"""


def _load_rollouts(state: dict[str, Any]) -> dict[str, Row]:
    ids = [rollout for tries in state["rollouts"].values() for rollout in tries]
    rows = Rollout.objects.filter(id__in=ids).values_list("id", "state", "outcome", "reward")
    return {str(pk): (state, outcome, reward) for pk, state, outcome, reward in rows}


def _is_scored(row: Row) -> bool:
    _, outcome, reward = row
    return reward is not None and bool(outcome) and Outcome(outcome).in_baseline


def _is_running(row: Row) -> bool:
    return row[0] != Rollout.State.ENDED


def _is_done(tries: list[Row]) -> bool:
    if not tries or _is_running(tries[-1]):
        return False
    return _is_scored(tries[-1]) or len(tries) >= MAX_TRIES


def _is_all_done(state: dict[str, Any], rows: dict[str, Row]) -> bool:
    return all(_is_done([rows[r] for r in state["rollouts"].get(task, []) if r in rows]) for task in state["tasks"])


def _missing(cast: Cast, state: dict[str, Any], rows: dict[str, Row]) -> list[str]:
    """Tasks to be dispatched now: neither done nor running, no more than the harness has places."""
    free = cast.config.harness.max_running - sum(_is_running(row) for row in rows.values())
    waiting = []
    for task in state["tasks"]:
        tries = [rows[rollout] for rollout in state["rollouts"].get(task, [])]
        if not _is_done(tries) and not any(_is_running(row) for row in tries):
            waiting.append(task)
    return waiting[: max(0, free)]


def _dispatch(cast: Cast, attempt: Attempt, state: dict[str, Any], missing: list[str]) -> None:
    tasks = {str(pk): task for pk, task in Task.objects.in_bulk(missing).items()}
    sampling = cast.config.sampling.model_copy(update={"temperature": cast.config.evaluation.temperature})
    for task_id in missing:
        rollout = dispatch_rollout(
            cast, task=tasks[task_id], purpose=Rollout.Purpose.EVALUATION, pool=attempt.pool, sampling=sampling
        )
        state["rollouts"].setdefault(task_id, []).append(str(rollout.id))


def _finish(attempt: Attempt, version: Version, state: dict[str, Any], rows: dict[str, Row]) -> None:
    last = [rows[tries[-1]] for tries in state["rollouts"].values()]
    rewards = [row[2] for row in last if _is_scored(row) and row[2] is not None]
    solved = sum(reward >= SOLVED_FROM for reward in rewards)
    state["state"] = "done"
    state["n"], state["solved"], state["missing"] = len(rewards), solved, len(last) - len(rewards)
    state["rate"] = solved / len(rewards) if rewards else None
    state["mean_reward"] = sum(rewards) / len(rewards) if rewards else None
    for key, value in (("heldout/rate", state["rate"]), ("heldout/mean_reward", state["mean_reward"])):
        if value is not None:
            Metric.objects.update_or_create(
                attempt=attempt, kind="evaluation", step=version.step, key=key, defaults={"value": value}
            )
    missing = f" {state['missing']} could not be scored." if state["missing"] else ""
    share = f" ({solved / len(rewards):.1%})" if rewards else ""
    record_event(
        attempt,
        "evaluation_done",
        f"Version {version.number} solved {solved} of {len(rewards)} held-out tasks{share}.{missing}",
        version=version.number,
        solved=solved,
        n=len(rewards),
    )


def heldout_rewards(version: Version) -> dict[str, float]:
    """Task id to reward, for tasks that were scored: what two versions are compared on."""
    state = version.evaluation.get("heldout", {})
    rows = _load_rollouts(state) if state else {}
    last = {task: rows[tries[-1]] for task, tries in state.get("rollouts", {}).items() if tries[-1] in rows}
    return {task: row[2] for task, row in last.items() if _is_scored(row) and row[2] is not None}
