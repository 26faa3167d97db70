"""Try one task: a harness works on it once, outside of any run, and the rollout page opens live.

From:  the task page and REST.
To:    a queued Rollout of purpose `trial` (environments.rollouts drives it).
Holds: where nothing serves a model, that is said before anything starts; a trial in a run's pool samples as that run
       does and ends when that attempt ends.
Never: trained on: no group and no member belongs to it.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.db import transaction

from environments.config import Budgets, Sampling
from environments.harnesses import HARNESSES, HarnessMissing
from environments.models import Engine, Harness, Model, Rollout, Task
from environments.rollouts import create_rollout, enqueue_rollout
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from training.config import RunConfig
from training.models import Attempt

EXPERT = "expert"
EXPERT_VERSION = -1
MAX_CALLS = 60
MAX_TOKENS = 1024
MAX_SAMPLED_TOKENS = 60_000
SLACK_S = 300.0


class TrialRefused(ValueError):
    """The trial did not start; `field` of the form, and what to do."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Who answers the harness. key: its pool, or `expert`."""

    key: str
    title: str
    note: str
    model: Model
    attempt: Attempt | None = None

    @property
    def is_expert(self) -> bool:
        return self.key == EXPERT


def list_places(task: Task) -> list[Place]:
    """Every pool with an engine that serves, and the scripted expert where the task has a solution."""
    engines = Engine.objects.filter(state=Engine.State.SERVING).exclude(base_url__startswith="expert://")
    by_pool: dict[str, list[Engine]] = {}
    for engine in engines:
        by_pool.setdefault(engine.pool, []).append(engine)
    found = [_place_of(pool, serving) for pool, serving in sorted(by_pool.items())]
    return [place for place in [*found, _expert_place(task)] if place is not None]


def _place_of(pool: str, engines: list[Engine]) -> Place | None:
    attempt = _attempt_of(pool)
    wanted = attempt.config["model"]["name"] if attempt else engines[0].model_name
    model = Model.objects.filter(name=wanted).first()
    if model is None:
        return None
    version = max(engine.version for engine in engines)
    number = f"{len(engines)} engine{'s' if len(engines) != 1 else ''}"
    title = f"{model.name}, v{version} of run {attempt.run.name}" if attempt else f"{model.name}, pool {pool}"
    return Place(key=pool, title=title, note=number, model=model, attempt=attempt)


def _attempt_of(pool: str) -> Attempt | None:
    try:
        wanted = UUID(pool.removeprefix("attempt-"))
    except ValueError:
        return None
    return Attempt.objects.select_related("run").filter(pk=wanted).first()


def _expert_place(task: Task) -> Place | None:
    model = Model.objects.order_by("name").first()
    if model is None or not (Path(task.directory) / "solution" / "solve.sh").is_file():
        return None
    note = "plays the task's solution, one command a turn; no model is asked"
    return Place(key=EXPERT, title="Scripted expert", note=note, model=model)


def start_trial(*, task: Task, harness: Harness, place: str, user: User) -> Rollout:
    """A queued rollout that a worker will drive. Raises TrialRefused."""
    chosen = next((each for each in list_places(task) if each.key == place), None)
    if chosen is None:
        raise TrialRefused("place", "Nothing serves there any more; choose another, or start a run first.")
    _check_harness(harness, chosen)
    sampling, budgets = choose_limits(task, chosen)
    with transaction.atomic():
        pool = _ensure_expert(harness, chosen.model) if chosen.is_expert else chosen.key
        rollout = create_rollout(
            task=task,
            model=chosen.model,
            harness=harness,
            purpose=Rollout.Purpose.TRIAL,
            pool=pool,
            sampling=sampling,
            budgets=budgets,
        )
        after = {"task": task.name, "harness": harness.name, "place": chosen.title}
        record(user, "task.try", rollout, after=after)
        transaction.on_commit(lambda: enqueue_rollout(rollout.pk))
    return rollout


def _check_harness(harness: Harness, place: Place) -> None:
    program = HARNESSES.get(harness.program)
    if program is None:
        raise TrialRefused("harness", f"This version has no program {harness.program!r}.")
    try:
        program.version()
    except HarnessMissing as error:
        raise TrialRefused("harness", str(error)) from error
    if place.is_expert and harness.program == "command":
        raise TrialRefused("harness", "The expert cannot play for a plain command; choose an agent program.")


def choose_limits(task: Task, place: Place) -> tuple[Sampling, Budgets]:
    """Those of the run whose engines serve; else roomy ones within the model's context."""
    if place.attempt:
        config = RunConfig.model_validate(place.attempt.config)
        return config.sampling, config.budgets
    budgets = Budgets(
        max_calls=MAX_CALLS,
        max_sampled_tokens=MAX_SAMPLED_TOKENS,
        max_context_tokens=place.model.context_length,
        wall_time_s=task.agent_timeout_s,
        overall_time_s=task.agent_timeout_s + task.verifier_timeout_s + SLACK_S,
    )
    return Sampling(max_tokens=min(MAX_TOKENS, max(1, place.model.context_length // 4))), budgets


def _ensure_expert(harness: Harness, model: Model) -> str:
    """The pool in which an expert answers this harness's program."""
    pool = f"{EXPERT}-{harness.program}"
    values = {"state": Engine.State.SERVING, "base_url": f"expert://{harness.program}", "model_name": model.name}
    Engine.objects.update_or_create(
        pool=pool, name="scripted expert", defaults=values | {"version": EXPERT_VERSION, "state_reason": ""}
    )
    return pool
