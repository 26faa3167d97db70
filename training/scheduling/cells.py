"""The cells of an attempt: their rows, their jobs, and the orders that the water level gives them.

From:  training.scheduling.attempts, each round.
To:    Cell.wanted_role, fenced by Cell.order_epoch; `training.jobs.supervise_cell`, which does what is wanted.
Holds: a cell whose job was lost gets another one, also after its attempt is over, until it has given everything back.
"""

import time
from dataclasses import dataclass, field
from math import ceil
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from environments.models import Rollout
from training.config import RunConfig
from training.kinds import trains_before_serving
from training.models import Attempt, Cell, Group, Version
from training.scheduling.leadership import Leadership
from training.scheduling.steps import current_step, due_version, steps_left_in_burst, waits_for_late_group
from training.scheduling.waterlevel import CellView, Situation, build_orders

RESEND_FIRST_S = 3.0
RESEND_MOST_S = 60.0


def create_cells(attempt: Attempt, config: RunConfig, epoch: int) -> None:
    """The core begins as a trainer (it makes version 0) or, where nothing is trained, serves; the satellites idle."""
    first = Cell.Role.TRAINS if trains_before_serving(config) else Cell.Role.SERVES
    for index in range(config.schedule.cells):
        wanted = first if index == 0 else Cell.Role.IDLE
        Cell.objects.get_or_create(attempt=attempt, index=index, defaults={"wanted_role": wanted, "order_epoch": epoch})


def count_unfinished(attempt: Attempt) -> int:
    """w: rollouts of the attempt's engines that were dispatched and have not ended."""
    return Rollout.objects.filter(pool=attempt.pool).exclude(state=Rollout.State.ENDED).count()


def load_situation(attempt: Attempt, config: RunConfig) -> Situation:
    capacity = ceil(config.harness.max_running / config.schedule.cells)
    cells = [
        CellView(index=cell.index, role=cell.role, wanted=cell.wanted_role, capacity=capacity)
        for cell in attempt.cells.order_by("index")
    ]
    may_train = attempt.wanted in (Attempt.Wanted.RUN, Attempt.Wanted.STOP) and not waits_for_late_group(
        attempt, config
    )
    if attempt.step >= config.optimization.steps:
        may_train = False
    ready = Group.objects.filter(attempt=attempt, state=Group.State.READY, step=None).count() if may_train else 0
    unpublished = Version.objects.filter(attempt=attempt, published_at=None, number__gte=attempt.version).exists()
    is_writing = not unpublished and _awaits_weights(attempt, config)
    stopping = attempt.wanted == Attempt.Wanted.STOP
    return Situation(
        mode=config.schedule.mode,
        cells=cells,
        unfinished=count_unfinished(attempt),
        ready_groups=ready,
        groups_per_step=config.tasks.groups_per_step,
        steps_left_in_burst=1 if stopping else steps_left_in_burst(attempt, config),
        step_going_on=is_writing or current_step(attempt) is not None,
        must_publish=unpublished,
    )


def _awaits_weights(attempt: Attempt, config: RunConfig) -> bool:
    """The trainer is making a version whose row is not there yet."""
    if attempt.state in (Attempt.State.QUEUED, Attempt.State.WARMING):
        return True
    return attempt.version < due_version(attempt, config)


def give_orders(leadership: Leadership, attempt: Attempt, config: RunConfig) -> None:
    """Change what cells are wanted to do, one act for all of them."""
    orders = build_orders(load_situation(attempt, config))
    if not orders:
        return
    with leadership.act(attempt.id):
        for index, role in orders.items():
            Cell.objects.filter(attempt=attempt, index=index, order_epoch__lte=leadership.epoch).update(
                wanted_role=role, order_epoch=leadership.epoch
            )


def some_cell_serves(attempt: Attempt) -> bool:
    return attempt.cells.filter(role=Cell.Role.SERVES, wanted_role=Cell.Role.SERVES).exists()


def core_trains(attempt: Attempt) -> bool:
    return attempt.cells.filter(index=0, role=Cell.Role.TRAINS, wanted_role=Cell.Role.TRAINS).exists()


def broken_cell(attempt: Attempt) -> Cell | None:
    """A cell that gave up though it was not told to."""
    return attempt.cells.filter(role=Cell.Role.DOWN).exclude(wanted_role=Cell.Role.DOWN).first()


@dataclass(kw_only=True)
class JobSender:
    """Sends a cell's job again while nobody holds its lease, ever less often: a job may only be waiting its turn."""

    sent: dict[UUID, tuple[float, float]] = field(default_factory=dict)
    """Cell to (monotonic time of the last send, pause until the next)."""

    def send_missing(self) -> None:
        from training.jobs import supervise_cell

        without = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lt=Now())
        waiting = set(Cell.objects.filter(without).exclude(role=Cell.Role.DOWN).values_list("id", flat=True))
        self.sent = {cell: when for cell, when in self.sent.items() if cell in waiting}
        for cell_id in waiting:
            at, pause_s = self.sent.get(cell_id, (float("-inf"), RESEND_FIRST_S / 2))
            if time.monotonic() - at >= pause_s:
                supervise_cell.delay(str(cell_id))
                self.sent[cell_id] = (time.monotonic(), min(RESEND_MOST_S, pause_s * 2))
