"""How many rollouts, and how many new groups, may be dispatched now. Pure: counts in, numbers out.

From:  training.scheduling.dispatch (rows), training.scheduling.simulator (simulated time).
Holds: never more than C sandboxes; never more than eta versions ahead; never more than Q_b groups in flight.
Cost:  constant.

Counting is by slot: a slot is one of a group's N places. A refill takes the place of the member that it replaces,
so an excluded member counts until its slot is given back to be refilled. A group that was excluded as a whole gives all its
places back: another group takes its turn, else the step that it was meant for would wait for ever.

Worked example, B = 2, N = 3, mu = 1, eta = 0, phi = 0, C = 4. Before the first burst (v = 0) six rollouts are
allowed, four at once, in two groups. When five have ended and one runs: min(4 - 1, 6 - (0 + 5 + 1)) = 0. After the
step is published (v = 1, consumed = 6): min(4 - 0, 12 - 6) = 4.
"""

from dataclasses import dataclass

from training.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Policy:
    capacity: int
    """C: most sandboxes at once."""
    groups_per_step: int
    """B"""
    rollouts_per_group: int
    """N"""
    burst_steps: int
    """mu: optimizer steps before weights are published"""
    staleness: int
    """eta: versions that dispatch may run ahead"""
    lead_groups: int
    """phi, the lead over B, as a number of groups (phi times B)"""

    @property
    def depth(self) -> int:
        """Q_b = (phi + mu) B: most groups in flight across a burst boundary."""
        return self.lead_groups + self.burst_steps * self.groups_per_step


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Where the attempt's slots are. Each slot of a group that was not excluded is in at most one of the counts."""

    version: int
    """v: published versions, that is, bursts"""
    consumed: int
    """Slots trained, or excluded for good in a group that was eaten."""
    ready: int
    """Slots whose last member ended and is not to be refilled, in groups not eaten yet."""
    running: int
    """Slots dispatched whose last member has not ended."""
    groups_in_flight: int
    """Groups dispatched, not eaten and not excluded."""


def build_policy(config: RunConfig) -> Policy:
    """`sync` never dispatches ahead, whatever else is configured."""
    ahead = config.schedule.mode != "sync"
    return Policy(
        capacity=config.harness.max_running,
        groups_per_step=config.tasks.groups_per_step,
        rollouts_per_group=config.tasks.rollouts_per_group,
        burst_steps=config.schedule.burst_steps,
        staleness=config.schedule.staleness if ahead else 0,
        lead_groups=config.schedule.lead_groups if ahead else 0,
    )


def allowed_rollouts(policy: Policy, ledger: Ledger) -> int:
    """min(C - running, (eta + v + 1) mu B N - (consumed + ready + running)), at least 0."""
    per_burst = policy.burst_steps * policy.groups_per_step * policy.rollouts_per_group
    ahead = (policy.staleness + ledger.version + 1) * per_burst
    dispatched = ledger.consumed + ledger.ready + ledger.running
    return max(0, min(policy.capacity - ledger.running, ahead - dispatched))


def allowed_groups(policy: Policy, ledger: Ledger) -> int:
    """Groups that may be opened without exceeding the depth Q_b."""
    return max(0, policy.depth - ledger.groups_in_flight)


def consumed_after_recovery(policy: Policy, version: int) -> int:
    """Recovery at version v restarts the count at v mu B N, so that admission neither bursts nor stalls."""
    return version * policy.burst_steps * policy.groups_per_step * policy.rollouts_per_group
