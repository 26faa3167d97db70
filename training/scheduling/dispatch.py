"""Dispatch rollouts: missing places of open groups first, then new groups, as admission allows.

From:  training.scheduling.attempts, each round while the attempt runs.
To:    Group, Member and Rollout rows in one act; the jobs are enqueued after its commit, and a job that was lost in
       between is found by environments.rollouts.requeue_lost_rollouts.
Holds: a slot gets one rollout, however often the controller dies: (group, slot, refill) and (attempt, index) are
       unique, and the act locks the attempt.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

from django.db import transaction
from django.db.models import Count, Max

from environments.config import Sampling
from environments.models import Harness, Model, Rollout, Task
from environments.rollouts import create_rollout, enqueue_rollout
from training.config import RunConfig
from training.events import record_event
from training.models import Attempt, Group, Member
from training.scheduling.admission import Ledger, allowed_groups, allowed_rollouts, build_policy
from training.scheduling.curriculum import Curriculum
from training.scheduling.groups import IN_FLIGHT, UNSETTLED, load_views
from training.scheduling.leadership import Leadership
from training.scheduling.settling import GroupView
from training.scheduling.task_order import Part, TaskOrder

MOST_AT_ONCE = 100
"""Rollouts of one act: a transaction stays short."""
MEMBERS_LOOKED_AT = 2000
"""Latest members whose rewards a curriculum goes by."""


@dataclass(frozen=True, kw_only=True)
class Cast:
    """What every rollout of an attempt shares."""

    attempt: Attempt
    config: RunConfig
    model: Model
    harness: Harness


def load_cast(attempt: Attempt, config: RunConfig) -> Cast:
    return Cast(
        attempt=attempt,
        config=config,
        model=Model.objects.get(name=config.model.name),
        harness=Harness.objects.get(name=config.harness.name),
    )


def load_task_order(config: RunConfig, split: Task.Split, purpose: str) -> TaskOrder[str]:
    """The order of task ids for a purpose: demonstrations, groups and evaluation each have their own."""
    return TaskOrder(seed=f"{config.seed}:{purpose}", parts=load_parts(config, split))


def load_parts(config: RunConfig, split: Task.Split) -> list[Part[str]]:
    """Task ids of the mixture."""
    parts = []
    for mixture in config.tasks.mixture:
        tasks = Task.objects.filter(taskset__name=mixture.taskset, split=split).order_by("name")
        if mixture.families:
            tasks = tasks.filter(family__in=mixture.families)
        found = [(family, str(pk)) for family, pk in tasks.values_list("family", "pk")]
        if found:
            parts.append(Part(weight=mixture.weight, tasks=found))
    return parts


class NextTask(Protocol):
    """The task id of a new group with this index."""

    def __call__(self, attempt: Attempt, index: int) -> str: ...


def load_next_task(config: RunConfig) -> NextTask:
    if config.tasks.curriculum == "even":
        order = load_task_order(config, Task.Split.TRAIN, "groups")
        return lambda attempt, index: order[index]
    curriculum = Curriculum(seed=f"{config.seed}:groups", parts=load_parts(config, Task.Split.TRAIN))
    return lambda attempt, index: curriculum.draw(index, rewards=latest_rewards(attempt), taken=groups_taken(attempt))


def latest_rewards(attempt: Attempt) -> dict[str, list[float]]:
    """By family, the latest last; of the last groups only, so that the query stays small in a long run."""
    members = Member.objects.filter(group__attempt=attempt, rollout__reward__isnull=False).order_by(
        "-group__index", "slot"
    )
    rewards: dict[str, list[float]] = defaultdict(list)
    for family, reward in members.values_list("group__task__family", "rollout__reward")[:MEMBERS_LOOKED_AT]:
        rewards[family].insert(0, float(reward or 0.0))
    return rewards


def groups_taken(attempt: Attempt) -> dict[str, int]:
    groups = Group.objects.filter(attempt=attempt).values("task__family")
    return dict(groups.annotate(n=Count("pk")).values_list("task__family", "n"))


def build_ledger(attempt: Attempt, config: RunConfig, views: list[GroupView]) -> Ledger:
    """Count the slots of the groups in flight; what was consumed follows from the steps that were done."""
    running = ready = 0
    for view in views:
        missing = {slot for slot, _ in view.missing}
        for member in view.current:
            running += not member.ended
            ready += member.ended and member.slot not in missing
    tasks = config.tasks
    return Ledger(
        version=attempt.version,
        consumed=attempt.step * tasks.groups_per_step * tasks.rollouts_per_group,
        ready=ready,
        running=running,
        groups_in_flight=len(views),
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What may be dispatched now."""

    places: list[tuple[Group, int, int]]
    """(group, slot, refill) of places in groups that are open."""
    num_new_groups: int
    allowed: int
    """Rollouts, places included."""

    @property
    def is_empty(self) -> bool:
        return not self.places and (self.allowed == 0 or self.num_new_groups <= 0)


def build_plan(attempt: Attempt, config: RunConfig) -> Plan:
    """Missing places first; then new groups, as many as steps still need."""
    groups = list(Group.objects.filter(attempt=attempt, state__in=IN_FLIGHT).select_related("task").order_by("index"))
    views = load_views(attempt, config, groups)
    policy = build_policy(config)
    ledger = build_ledger(attempt, config, list(views.values()))
    allowed = min(allowed_rollouts(policy, ledger), MOST_AT_ONCE)
    places = [
        (group, slot, refill)
        for group in groups
        if group.state in UNSETTLED
        for slot, refill in views[group.id].missing
    ]
    needed = (config.optimization.steps - attempt.step) * policy.groups_per_step - len(groups)
    return Plan(places=places[:allowed], num_new_groups=min(allowed_groups(policy, ledger), needed), allowed=allowed)


def dispatch_groups(leadership: Leadership, cast: Cast, next_task: NextTask) -> int:
    """One act that dispatches what is allowed, at most MOST_AT_ONCE rollouts. Returns how many."""
    if build_plan(cast.attempt, cast.config).is_empty:
        return 0
    with leadership.act(cast.attempt.id) as attempt:
        if attempt.wanted != Attempt.Wanted.RUN:
            return 0
        plan = build_plan(attempt, cast.config)
        places = list(plan.places)
        size = cast.config.tasks.rollouts_per_group
        for _ in range(plan.num_new_groups):
            if len(places) >= plan.allowed:
                break
            group = _open_group(attempt, next_task)
            places += [(group, slot, 0) for slot in range(size)][: plan.allowed - len(places)]
        for group, slot, refill in places:
            _dispatch_member(cast, attempt, group, slot, refill)
        return len(places)


def _open_group(attempt: Attempt, next_task: NextTask) -> Group:
    last = Group.objects.filter(attempt=attempt).aggregate(last=Max("index"))["last"]
    index = 0 if last is None else last + 1
    return Group.objects.create(
        attempt=attempt, index=index, task_id=next_task(attempt, index), dispatched_version=attempt.version
    )


def _dispatch_member(cast: Cast, attempt: Attempt, group: Group, slot: int, refill: int) -> None:
    rollout = dispatch_rollout(
        cast,
        task=group.task,
        purpose=Rollout.Purpose.TRAIN,
        pool=attempt.pool,
        sampling=member_sampling(cast.config.sampling, group.index, slot, refill),
    )
    Member.objects.create(group=group, rollout=rollout, slot=slot, refill=refill)
    if refill:
        text = f"Group {group.index}, member {slot} is done again (refill {refill} of at most 2)."
        record_event(attempt, "member_refilled", text, group=str(group.id), rollout=str(rollout.id))


def member_sampling(sampling: Sampling, group: int, slot: int, refill: int) -> Sampling:
    """A configured seed gives each member one of its own: the same one would make a group of equal rollouts."""
    if sampling.seed is None:
        return sampling
    seed = (sampling.seed + 1_000_003 * group + 101 * slot + 7 * refill) % 2**31
    return sampling.model_copy(update={"seed": seed})


def dispatch_rollout(cast: Cast, *, task: Task, purpose: Rollout.Purpose, pool: str, sampling: Sampling) -> Rollout:
    """The row, in the caller's transaction; its job once that is committed."""
    rollout = create_rollout(
        task=task,
        model=cast.model,
        harness=cast.harness,
        purpose=purpose,
        pool=pool,
        sampling=sampling,
        budgets=cast.config.budgets,
        sandboxing=cast.config.harness.sandbox,
    )
    transaction.on_commit(lambda: enqueue_rollout(rollout.id), robust=True)
    return rollout
