"""The elastic strip: what each cell did when, drawn as one lane a cell with versions marked.

From:  Cell.history, Version.published_at.
To:    numbers for templates/runs/_strip.html, all in percent of the width, so that it needs no script.
Holds: pure; a lane's blocks never overlap; what is before the window is cut at its edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from training.models import Cell

MIN_BLOCK = 0.08
"""Percent: anything shorter would vanish."""
NICE_STEPS_S = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


@dataclass(frozen=True, kw_only=True)
class Block:
    x: float
    width: float
    role: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Lane:
    cell: Cell
    y: int
    blocks: list[Block]
    shares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    lanes: list[Lane]
    ticks: list[Tick]
    versions: list[Tick]
    height: int
    lanes_height: int


def build_strip(
    *,
    cells: Sequence[Cell],
    published: Sequence[tuple[int, datetime]],
    start: datetime,
    end: datetime,
    lane_height: int = 28,
) -> Strip:
    """start, end: the window that is drawn."""
    whole = max((end - start).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return round(100 * (at - start).total_seconds() / whole, 3)

    lanes = [build_lane(cell, index * lane_height, start, end, whole) for index, cell in enumerate(cells)]
    versions = [Tick(x=x(at), label=f"v{number}") for number, at in published if start <= at <= end]
    height = len(lanes) * lane_height
    return Strip(
        lanes=lanes, ticks=build_ticks(whole), versions=thinned(versions), height=height + 40, lanes_height=height
    )


def build_lane(cell: Cell, y: int, start: datetime, end: datetime, whole: float) -> Lane:
    blocks: list[Block] = []
    seconds_by_role: dict[str, float] = {}
    stamps = [(datetime.fromisoformat(at), role) for at, role in cell.history]
    for (at, role), (until, _) in pairwise([*stamps, (end, "")]):
        left, right = max(at, start), min(until, end)
        seconds = (right - left).total_seconds()
        if seconds <= 0:
            continue
        seconds_by_role[role] = seconds_by_role.get(role, 0.0) + seconds
        blocks.append(
            Block(
                x=round(100 * (left - start).total_seconds() / whole, 3),
                width=round(max(100 * seconds / whole, MIN_BLOCK), 3),
                role=role,
                seconds=seconds,
            )
        )
    total = sum(seconds_by_role.values()) or 1.0
    return Lane(cell=cell, y=y, blocks=blocks, shares={role: s / total for role, s in seconds_by_role.items()})


def build_ticks(whole: float) -> list[Tick]:
    """At most eight marks, at round times since the window's start."""
    step = next((s for s in NICE_STEPS_S if whole / s <= 8), 86400 * (1 + int(whole / 86400 / 8)))
    count = int(whole // step)
    return [
        Tick(x=round(100 * n * step / whole, 3), label=elapsed(n * step))
        for n in range(count + 1)
        if n * step < whole * 0.97
    ]


def elapsed(seconds: float) -> str:
    """`0`, `30 s`, `5 min`, `1:30 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds else "0"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    hours, rest = divmod(int(seconds) // 60, 60)
    return f"{hours}:{rest:02d} h" if rest else f"{hours} h"


def thinned(versions: list[Tick], gap: float = 2.5) -> list[Tick]:
    """Marks stay, labels that would touch the one before are dropped."""
    kept: list[Tick] = []
    last = -gap
    for tick in versions:
        near = tick.x - last < gap
        kept.append(Tick(x=tick.x, label="" if near else tick.label))
        last = last if near else tick.x
    return kept


WINDOWS: dict[str, timedelta | None] = {
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "all": None,
}
