"""Which cell serves and which trains. Pure: the situation in, orders out.

From:  training.scheduling.cells (rows), training.scheduling.simulator (simulated time).
To:    {cell index: role} for the cells that shall change; an empty answer is the usual one.
Holds: one cell turns at a time (colocate and sync turn all together); the core is first to train; weights that wait
       to be published come before any other training.
Cost:  linear in cells.

Serve to train: the next cell may turn when unfinished <= C_R - C_e, that is, when what goes on serving can carry all
that is unfinished. A single cell leaves nothing to carry anything; in `elastic` it turns when a step has its groups,
and what is unfinished waits on the held engine, so that a straggler does not block the step. In `colocate` and `sync`
all turn when every rollout has ended. `async` keeps the core training and the satellites serving.

Train to serve: at a burst's end all but the core; the core stays only if the next batch is ready and the rest carries
the load. Between steps of a burst, cells go back to serve when no batch is ready.

Worked example, elastic, three cells of capacity 8, all serving, one batch ready. 17 unfinished: 17 > 24 - 8, nobody
turns. 16 unfinished: the core turns. It trains, and 8 are left: 8 <= 16 - 8, satellite 1 turns and joins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["serves", "trains"]
Mode = Literal["elastic", "colocate", "async", "sync"]


@dataclass(frozen=True, kw_only=True)
class CellView:
    index: int
    role: str
    """Cell.Role: what it does."""
    wanted: str
    """Cell.Role: what it was last told."""
    capacity: int
    """C_e: rollouts that it carries when it serves."""

    @property
    def is_turning(self) -> bool:
        return self.role != self.wanted


@dataclass(frozen=True, kw_only=True)
class Situation:
    mode: Mode
    cells: Sequence[CellView]
    """In order; the first is the core."""
    unfinished: int
    """w: rollouts dispatched and not ended."""
    ready_groups: int
    groups_per_step: int
    """B"""
    steps_left_in_burst: int
    """Of mu, from 1; what colocate and sync collect before they turn."""
    step_going_on: bool
    """An optimizer step is requested or training."""
    must_publish: bool
    """A burst ended and its weights are not served yet."""


def build_orders(now: Situation) -> dict[int, Role]:
    """Cells whose order shall change, and what to."""
    if now.mode == "async":
        return _changed(now, {cell.index: "trains" if cell.index == 0 else "serves" for cell in now.cells})
    if now.must_publish:
        return _changed(now, _at_burst_end(now))
    if any(cell.is_turning for cell in now.cells):
        return {}
    if now.mode in ("colocate", "sync"):
        return _changed(now, _together(now))
    return _changed(now, _one_by_one(now))


def _changed(now: Situation, wanted: dict[int, Role]) -> dict[int, Role]:
    return {cell.index: wanted[cell.index] for cell in now.cells if wanted.get(cell.index, cell.wanted) != cell.wanted}


def _at_burst_end(now: Situation) -> dict[int, Role]:
    rest = sum(cell.capacity for cell in now.cells[1:])
    fits = rest > 0 and now.unfinished <= rest
    core_stays = now.mode == "elastic" and now.cells[0].wanted == "trains" and _batch_is_ready(now) and fits
    return {cell.index: "trains" if cell.index == 0 and core_stays else "serves" for cell in now.cells}


def _together(now: Situation) -> dict[int, Role]:
    trains = now.step_going_on or (now.unfinished == 0 and _burst_is_ready(now)) or _goes_on(now)
    return {cell.index: "trains" if trains else "serves" for cell in now.cells}


def _one_by_one(now: Situation) -> dict[int, Role]:
    if not now.step_going_on and not _batch_is_ready(now):
        return {cell.index: "serves" for cell in now.cells}
    serving = [cell for cell in now.cells if cell.wanted == "serves"]
    if not serving:
        return {}
    remains = sum(cell.capacity for cell in serving[1:])
    fits = now.unfinished <= remains or len(now.cells) == 1
    return {serving[0].index: "trains"} if fits else {}


def _batch_is_ready(now: Situation) -> bool:
    return now.ready_groups >= now.groups_per_step


def _burst_is_ready(now: Situation) -> bool:
    return now.ready_groups >= now.groups_per_step * now.steps_left_in_burst


def _goes_on(now: Situation) -> bool:
    """Between two steps of a burst: the cells are training and the next batch is there."""
    return _batch_is_ready(now) and all(cell.wanted == "trains" for cell in now.cells)
