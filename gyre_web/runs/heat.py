"""Groups as a heat row: one column a group in order of dispatch, one cell a member.

From:  members with their rollouts, two queries whatever the number of groups.
To:    numbers and shapes for templates/runs/_heat.html.
Holds: every member is drawn; colour says the reward, shape says what became of it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from training.models import Attempt, Group, Member

CELL = 12
GAP = 2
LAST_GROUPS = 120


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """level: 0 to 5 of the reward scale, None without a reward. shape: how it is drawn."""

    y: int
    shape: str
    level: int | None
    title: str


@dataclass(frozen=True, kw_only=True)
class HeatColumn:
    group_id: UUID
    index: int
    x: int
    cells: list[HeatCell]
    no_signal: bool
    state: str
    step: int | None
    first_of_step: bool
    title: str


@dataclass(frozen=True, kw_only=True)
class Heat:
    columns: list[HeatColumn]
    width: int
    height: int
    rows_height: int
    num_groups: int
    num_no_signal: int
    num_hidden: int


def load_heat(attempt: Attempt, *, last: int | None = LAST_GROUPS) -> Heat:
    """The last groups of an attempt; all with last=None."""
    groups = Group.objects.filter(attempt=attempt).select_related("task", "step").order_by("-index")
    total = groups.count()
    chosen = list(groups[:last] if last else groups)[::-1]
    members: dict[UUID, list[Member]] = defaultdict(list)
    rows = (
        Member.objects.filter(group__in=chosen)
        .select_related("rollout")
        .only(
            "group_id", "slot", "refill", "effective_reward", "hold", "disposition", "reason", "include",
            "rollout__reward", "rollout__state", "rollout__outcome", "rollout__id",
        )
    )  # fmt: skip
    for member in rows:
        members[member.group_id].append(member)
    return build_heat(chosen, members, total)


def build_heat(groups: list[Group], members: dict[UUID, list[Member]], total: int) -> Heat:
    tallest = max((len(found) for found in members.values()), default=0)
    rows_height = tallest * (CELL + GAP)
    columns = []
    steps: set[int] = set()
    for position, group in enumerate(groups):
        step = group.step.number if group.step else None
        columns.append(build_column(group, members[group.pk], position, rows_height, step, step not in steps))
        if step is not None:
            steps.add(step)
    return Heat(
        columns=columns,
        width=len(columns) * (CELL + GAP),
        height=rows_height + 26,
        rows_height=rows_height,
        num_groups=total,
        num_no_signal=sum(group.no_signal for group in groups),
        num_hidden=total - len(groups),
    )


def build_column(
    group: Group, members: Iterable[Member], position: int, rows_height: int, step: int | None, first: bool
) -> HeatColumn:
    """Members from the bottom up by falling reward, so that a column also reads as a bar."""
    ordered = sorted(members, key=lambda member: (member.reward is None, -(member.reward or 0.0), member.slot))
    cells = [build_cell(member, rows_height - (row + 1) * (CELL + GAP)) for row, member in enumerate(ordered)]
    rewards = [member.reward for member in ordered if member.reward is not None]
    mean = f"mean reward {sum(rewards) / len(rewards):.2f}" if rewards else "no reward yet"
    where = f"step {step}" if step is not None else str(group.get_state_display())
    title = f"Group {group.index} · {group.task.name} · {where} · {mean}"
    return HeatColumn(
        group_id=group.pk,
        index=group.index,
        x=position * (CELL + GAP),
        cells=cells,
        no_signal=group.no_signal,
        state=group.state,
        step=step,
        first_of_step=first and step is not None,
        title=title + (" · no signal" if group.no_signal else ""),
    )


def build_cell(member: Member, y: int) -> HeatCell:
    reward = member.reward
    shape = shape_of(member, reward)
    words: list[Any] = [
        f"slot {member.slot}",
        member.rollout.get_outcome_display() or member.rollout.get_state_display(),
    ]
    words.append("not scored" if reward is None else f"reward {reward:g}")
    if member.effective_reward is not None:
        words.append(f"a person's; the verifier said {member.rollout.reward}")
    words += [text for text in (member.disposition, member.reason) if text]
    return HeatCell(y=y, shape=shape, level=reward_level(reward), title=" · ".join(str(word) for word in words))


def shape_of(member: Member, reward: float | None) -> str:
    if member.disposition == Member.Disposition.EXCLUDED or member.include == Member.Include.DROP:
        return "excluded"
    if member.hold:
        return "held"
    if reward is None:
        return "queued" if member.rollout.state == "queued" else "live" if member.rollout.is_live else "unscored"
    return "judged" if member.effective_reward is not None else "scored"


def reward_level(reward: float | None) -> int | None:
    """0 to 5: the step of the reward scale. Rewards outside [0, 1] take the nearest end."""
    return None if reward is None else round(5 * min(1.0, max(0.0, reward)))
