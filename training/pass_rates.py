"""How good is a model on a set of tasks, and how sure is that: pass@k and its intervals. Pure numbers.

From:  per task, how many of its n scored rollouts c passed (training.scheduling.evaluation, gyre_web.runs.comparison).
To:    the evaluation's result, the pages, REST.
Holds: a task counts once, however many rollouts it has; a task without enough scored rollouts for k is left out of
       pass@k and counted in `missing`; the same counts give the same interval (the resampling is seeded).

Worked example: task A passed 1 of 4, task B 4 of 4. pass@1 = (1/4 + 1) / 2 = 0.625. For A, pass@2 is one minus the chance
that two rollouts drawn without replacement both failed: 1 - (3 over 2) / (4 over 2) = 0.5; so pass@2 = 0.75.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 4000
SEED = 20260101

Counts = Mapping[str, tuple[int, int]]
"""task -> (scored rollouts n, passed c)"""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A mean over `tasks` tasks and its interval. method: how the interval was made; none: too few tasks."""

    value: float
    low: float
    high: float
    tasks: int
    missing: int = 0
    method: Literal["wilson", "bootstrap", "none"] = "bootstrap"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k rollouts passes, unbiased from n >= k (arXiv 2107.03374, eq. 1)."""
    if n < k:
        raise ValueError(f"pass@{k} needs {k} scored rollouts, there are {n}")
    return 1.0 - comb(n - c, k) / comb(n, k)


def wilson_interval(passed: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927): right also near 0 and 1 and for few tries."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, spread = passed / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile interval of the mean, tasks drawn with replacement: tasks are what differs from set to set."""
    array = np.asarray(values, dtype=np.float64)
    source = np.random.default_rng(SEED)
    means = np.concatenate([resampled_means(array, source) for _ in range(RESAMPLES // 500)])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def resampled_means(array: npt.NDArray[np.float64], source: np.random.Generator) -> npt.NDArray[np.float64]:
    """500 means: in parts, so that many tasks do not make one large table."""
    chosen = source.integers(0, len(array), size=(500, len(array)))
    means: npt.NDArray[np.float64] = array[chosen].mean(axis=1)
    return means


def rate(counts: Counts, k: int = 1) -> Rate | None:
    """pass@k over the tasks; None where no task has k scored rollouts.

    One rollout a task: the tries are a plain sample, so Wilson's interval; else a bootstrap over tasks.
    """
    enough = {task: pair for task, pair in counts.items() if pair[0] >= k}
    if not enough:
        return None
    values = [pass_at_k(n, c, k) for n, c in enough.values()]
    missing = len(counts) - len(enough)
    mean = sum(values) / len(values)
    if all(n == 1 for n, _ in enough.values()):
        low, high = wilson_interval(sum(c for _, c in enough.values()), len(values))
        return Rate(value=mean, low=low, high=high, tasks=len(values), missing=missing, method="wilson")
    if len(values) < 2:
        return Rate(value=mean, low=0.0, high=1.0, tasks=1, missing=missing, method="none")
    low, high = bootstrap_interval(values)
    return Rate(value=mean, low=low, high=high, tasks=len(values), missing=missing)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """b minus a over the tasks that both have: paired, so that a hard task is hard for both."""

    value: float
    low: float
    high: float
    tasks: int
    better: int
    """Tasks on which b's rate is higher."""
    worse: int

    @property
    def is_clear(self) -> bool:
        """The interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def paired_difference(a: Counts, b: Counts, k: int = 1) -> Difference | None:
    """None where fewer than two tasks are in both with k scored rollouts."""
    common = [task for task in a if task in b and a[task][0] >= k and b[task][0] >= k]
    if len(common) < 2:
        return None
    steps = [pass_at_k(*b[task], k) - pass_at_k(*a[task], k) for task in sorted(common)]
    low, high = bootstrap_interval(steps)
    return Difference(
        value=sum(steps) / len(steps),
        low=low,
        high=high,
        tasks=len(steps),
        better=sum(step > 0 for step in steps),
        worse=sum(step < 0 for step in steps),
    )


def ks_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and the most itself: which pass@k are reported."""
    powers = [1 << place for place in range(most.bit_length()) if 1 << place <= most]
    return powers if powers and powers[-1] == most else [*powers, most]
