"""Admission follows the formula of the design, worked by hand, and never exceeds the depth Q_b."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config import RunConfig
from training.scheduling.admission import (
    Ledger,
    Policy,
    allowed_groups,
    allowed_rollouts,
    build_policy,
    consumed_after_recovery,
)

SMALL = Policy(capacity=4, groups_per_step=2, rollouts_per_group=3, burst_steps=1, staleness=0, lead_groups=0)


def ledger(**counts: int) -> Ledger:
    return Ledger(**{"version": 0, "consumed": 0, "ready": 0, "running": 0, "groups_in_flight": 0} | counts)


@pytest.mark.parametrize(
    ("counts", "allowed"),
    [
        ({}, 4),  # min(4 - 0, 6 - 0)
        ({"running": 4}, 0),  # min(4 - 4, 6 - 4)
        ({"running": 3, "ready": 2}, 1),  # min(4 - 3, 6 - 5)
        ({"running": 1, "ready": 5}, 0),  # min(4 - 1, 6 - 6)
        ({"consumed": 6, "version": 0}, 0),  # trained, not published: min(4, 6 - 6)
        ({"consumed": 6, "version": 1}, 4),  # published: min(4, 12 - 6)
        ({"consumed": 6, "version": 1, "ready": 3, "running": 1}, 2),  # min(3, 12 - 10)
    ],
)
def test_rollouts_are_admitted_as_worked_by_hand(counts, allowed):
    assert allowed_rollouts(SMALL, ledger(**counts)) == allowed


def test_a_staleness_of_one_lets_dispatch_run_one_version_ahead():
    policy = Policy(capacity=100, groups_per_step=2, rollouts_per_group=3, burst_steps=4, staleness=1, lead_groups=8)
    assert allowed_rollouts(policy, ledger()) == 48  # (1 + 0 + 1) * 4 * 2 * 3
    assert allowed_groups(policy, ledger(groups_in_flight=5)) == 11  # 8 + 4 * 2 - 5


def test_recovery_at_a_version_neither_bursts_nor_stalls_admission():
    consumed = consumed_after_recovery(SMALL, 7)
    assert consumed == 42
    assert allowed_rollouts(SMALL, ledger(version=7, consumed=consumed, running=0)) == 4


def test_a_count_that_is_too_high_admits_nothing_rather_than_a_negative_number():
    assert allowed_rollouts(SMALL, ledger(running=9, ready=9)) == 0
    assert allowed_groups(SMALL, ledger(groups_in_flight=9)) == 0


def test_sync_never_dispatches_ahead():
    config = RunConfig.model_validate({"schedule": {"mode": "sync", "staleness": 3, "lead_groups": 5}})
    assert (build_policy(config).staleness, build_policy(config).lead_groups) == (0, 0)


policies = st.builds(
    Policy,
    capacity=st.integers(1, 40),
    groups_per_step=st.integers(1, 5),
    rollouts_per_group=st.integers(2, 6),
    burst_steps=st.integers(1, 4),
    staleness=st.integers(0, 3),
    lead_groups=st.integers(0, 12),
)


class Play:
    """A run played with the rules: opens groups, ends rollouts in any order, eats B ready groups, publishes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.groups: list[list[str]] = []
        self.steps = 0

    def ledger(self) -> Ledger:
        policy, states = self.policy, [state for group in self.groups for state in group]
        return Ledger(
            version=self.steps // policy.burst_steps,
            consumed=self.steps * policy.groups_per_step * policy.rollouts_per_group,
            ready=states.count("ended"),
            running=states.count("running"),
            groups_in_flight=len(self.groups),
        )

    def dispatch(self) -> None:
        """Missing places of open groups first, then new groups, as training.scheduling.dispatch does."""
        allowed = allowed_rollouts(self.policy, self.ledger())
        while allowed:
            group = next((g for g in self.groups if len(g) < self.policy.rollouts_per_group), None)
            if group is None:
                if not allowed_groups(self.policy, self.ledger()):
                    return
                self.groups.append(group := [])
            group.append("running")
            allowed -= 1

    def end_one(self, choice: int) -> None:
        running = [(g, i) for g in self.groups for i, state in enumerate(g) if state == "running"]
        if running:
            group, index = running[choice % len(running)]
            group[index] = "ended"

    def train(self) -> None:
        full = [g for g in self.groups if g == ["ended"] * self.policy.rollouts_per_group]
        if len(full) >= self.policy.groups_per_step:
            for group in full[: self.policy.groups_per_step]:
                self.groups = [g for g in self.groups if g is not group]
            self.steps += 1


@given(policy=policies, choices=st.lists(st.integers(0, 1000), max_size=150))
def test_the_depth_and_the_staleness_bound_hold_whatever_ends_when(policy, choices):
    play = Play(policy)
    for choice in choices:
        play.dispatch()
        now = play.ledger()
        assert now.groups_in_flight <= policy.depth
        assert now.running <= policy.capacity
        ahead = (policy.staleness + now.version + 1) * policy.burst_steps
        dispatched = now.consumed + now.ready + now.running
        assert dispatched <= ahead * policy.groups_per_step * policy.rollouts_per_group
        play.end_one(choice)
        play.train()


@given(policy=policies, steps=st.integers(1, 4))
def test_admission_never_starves_a_step_for_ever(policy, steps):
    play = Play(policy)
    for _ in range(steps * policy.groups_per_step * policy.rollouts_per_group + 1):
        play.dispatch()
        play.end_one(0)
        play.train()
    assert play.steps >= steps
