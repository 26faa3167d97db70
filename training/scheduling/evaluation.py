"""Evaluate a version on tasks that are the same for the whole run.

From:  training.scheduling.attempts, before the first group, every so many steps, and after the last.
To:    Version.evaluation["heldout"] and metrics of kind evaluation; while one goes on, nothing is trained.
Holds: each task is scored `samples_per_task` times a version; a rollout that could not be scored is done again at most
       twice, then its place counts as missing, never as failed.

Version.evaluation, worked example: {"heldout": {"state": "done", "tasks": ["t1", "t2"], "samples": 1, "rollouts":
{"t1": ["r1"], "t2": ["r2", "r3"]}, "n": 2, "solved": 1, "rate": 0.5, "mean_reward": 0.5, "missing": 0, "pass_at": {"1":
{"value": 0.5, "low": 0.09, "high": 0.91, ...}}}}; r2 was not scored. The second place of t1 would be called "t1#1".
"""

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from environments.config import Sampling
from environments.models import Outcome, Rollout, Task
from training.config import RunConfig
from training.events import record_event
from training.metrics import save_metrics
from training.models import Attempt, Version
from training.pass_rates import ks_up_to, rate
from training.scheduling.dispatch import MOST_AT_ONCE, Cast, dispatch_rollout, load_task_order
from training.scheduling.leadership import Leadership
from training.scheduling.steps import due_version

MAX_TRIES = 3
SOLVED_FROM = 1.0
"""A task is solved when its reward is at least this."""


def choose_tasks(config: RunConfig) -> list[str]:
    """The tasks of the run's evaluations: the same for every version and every restart."""
    order = load_task_order(config, Task.Split(config.evaluation.split), "evaluation")
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
    tasks, samples = choose_tasks(config), config.evaluation.samples_per_task
    times = f", {samples} times each" if samples > 1 else ""
    text = f"Version {number} is tried on {len(tasks)} {word_of(config)} tasks{times}."
    record_event(attempt, "evaluation_started", text, version=number)
    return {"state": "running", "tasks": tasks, "samples": samples, "rollouts": {}}


def word_of(config: RunConfig) -> str:
    return "held-out" if config.evaluation.split == "heldout" else "training"


def places(state: dict[str, Any]) -> list[str]:
    """One name for each rollout that is wanted: every task once, then every task again."""
    return [place_name(task, n) for n in range(state.get("samples", 1)) for task in state["tasks"]]


def place_name(task: str, sample: int) -> str:
    return task if sample == 0 else f"{task}#{sample}"


def task_of(place: str) -> str:
    return place.partition("#")[0]


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
    return all(_is_done([rows[r] for r in state["rollouts"].get(place, []) if r in rows]) for place in places(state))


def _missing(cast: Cast, state: dict[str, Any], rows: dict[str, Row]) -> list[str]:
    """Places to be dispatched now: neither done nor running, no more than the harness has room for."""
    free = cast.config.harness.max_running - sum(_is_running(row) for row in rows.values())
    waiting = []
    for place in places(state):
        tries = [rows[rollout] for rollout in state["rollouts"].get(place, [])]
        if not _is_done(tries) and not any(_is_running(row) for row in tries):
            waiting.append(place)
    return waiting[: min(max(0, free), MOST_AT_ONCE)]


def _dispatch(cast: Cast, attempt: Attempt, state: dict[str, Any], missing: list[str]) -> None:
    tasks = {str(pk): task for pk, task in Task.objects.in_bulk([task_of(place) for place in missing]).items()}
    sampling = cast.config.sampling.model_copy(update={"temperature": cast.config.evaluation.temperature})
    for place in missing:
        rollout = dispatch_rollout(
            cast,
            task=tasks[task_of(place)],
            purpose=Rollout.Purpose.EVALUATION,
            pool=attempt.pool,
            sampling=place_sampling(sampling, place),
        )
        state["rollouts"].setdefault(place, []).append(str(rollout.id))


def place_sampling(sampling: Sampling, place: str) -> Sampling:
    """A configured seed gives each rollout of a task its own: the same one would be the same rollout again."""
    _, _, sample = place.partition("#")
    if sampling.seed is None or not sample:
        return sampling
    return sampling.model_copy(update={"seed": (sampling.seed + 1_000_003 * int(sample)) % 2**31})


def count_passed(state: dict[str, Any], rows: dict[str, Row]) -> dict[str, tuple[int, int]]:
    """Of each task: (scored, solved); a task of which nothing was scored has (0, 0)."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for place in places(state):
        pair = counts[task_of(place)]
        tries = state["rollouts"].get(place, [])
        row = rows.get(tries[-1]) if tries else None
        if row is not None and _is_scored(row) and row[2] is not None:
            pair[0] += 1
            pair[1] += row[2] >= SOLVED_FROM
    return {task: (pair[0], pair[1]) for task, pair in counts.items()}


def pass_rates(counts: dict[str, tuple[int, int]], samples: int) -> dict[str, dict[str, Any]]:
    """{"1": {value, low, high, tasks, missing, method}, "2": ...} up to k = samples."""
    found = {str(k): rate(counts, k) for k in ks_up_to(samples)}
    return {k: asdict(each) for k, each in found.items() if each is not None}


def _finish(attempt: Attempt, version: Version, state: dict[str, Any], rows: dict[str, Row]) -> None:
    last = [rows[tries[-1]] for tries in state["rollouts"].values()]
    rewards = [row[2] for row in last if _is_scored(row) and row[2] is not None]
    solved = sum(reward >= SOLVED_FROM for reward in rewards)
    state["pass_at"] = pass_rates(count_passed(state, rows), state.get("samples", 1))
    state["state"] = "done"
    state["n"], state["solved"], state["missing"] = len(rewards), solved, len(last) - len(rewards)
    state["rate"] = solved / len(rewards) if rewards else None
    state["mean_reward"] = sum(rewards) / len(rewards) if rewards else None
    values = [("heldout/rate", state["rate"]), ("heldout/mean_reward", state["mean_reward"])]
    values += [(f"pass_at/{k}", each["value"]) for k, each in state["pass_at"].items()]
    known = {key: value for key, value in values if value is not None}
    save_metrics(attempt, kind="evaluation", step=version.step, values=known)
    missing = f" {state['missing']} could not be scored." if state["missing"] else ""
    share = f" ({solved / len(rewards):.1%})" if rewards else ""
    what = "evaluation rollouts" if state.get("samples", 1) > 1 else "held-out tasks"
    record_event(
        attempt,
        "evaluation_done",
        f"Version {version.number} solved {solved} of {len(rewards)} {what}{share}.{missing}",
        version=version.number,
        solved=solved,
        n=len(rewards),
    )


def task_counts(version: Version) -> dict[str, tuple[int, int]]:
    """Task id to (scored, solved): what two versions are compared on."""
    state = version.evaluation.get("heldout", {})
    return count_passed(state, _load_rollouts(state)) if state else {}


def heldout_rewards(version: Version) -> dict[str, float]:
    """Task id to mean reward, for tasks that were scored."""
    state = version.evaluation.get("heldout", {})
    rows = _load_rollouts(state) if state else {}
    found: dict[str, list[float]] = defaultdict(list)
    for place, tries in state.get("rollouts", {}).items():
        row = rows.get(tries[-1])
        if row is not None and _is_scored(row) and row[2] is not None:
            found[task_of(place)].append(row[2])
    return {task: sum(values) / len(values) for task, values in found.items()}
