"""How a rollout ended, and what that means for its score (design: the life of a rollout)."""

from django.db import models


class Outcome(models.TextChoices):
    COMPLETED = "completed"
    HARNESS_TIMEOUT = "harness_timeout", "harness timeout"
    BUDGET_REACHED = "budget_reached", "budget reached"
    CONTEXT_OVERFLOW = "context_overflow", "context overflow"
    HARNESS_CRASH = "harness_crash", "harness crash"
    IDLE = "idle", "idle watchdog"
    OVERALL_TIMEOUT = "overall_timeout", "overall timeout"
    CANCELLED = "cancelled"
    SANDBOX_FAILED = "sandbox_failed", "sandbox failed"
    IMAGE_UNAVAILABLE = "image_unavailable", "image unavailable"
    VERIFIER_ERROR = "verifier_error", "verifier error"
    LOST = "lost", "lost and not replayable"

    @property
    def is_scored(self) -> bool:
        """What is left in the work tree is graded."""
        return self in SCORED

    @property
    def in_baseline(self) -> bool:
        """Counts in its group's mean and deviation. A verifier error never does: it is not a zero."""
        return self in SCORED

    @property
    def placeholder_reward(self) -> float | None:
        """What stands in the place of a reward where nothing could be evaluated. Never the row's own `reward`.

        A run may let it count (objective.image_unavailable); by default it is out of the baseline.
        """
        return 0.0 if self == Outcome.IMAGE_UNAVAILABLE else None


SCORED = frozenset(
    {
        Outcome.COMPLETED,
        Outcome.HARNESS_TIMEOUT,
        Outcome.BUDGET_REACHED,
        Outcome.CONTEXT_OVERFLOW,
        Outcome.HARNESS_CRASH,
        Outcome.IDLE,
    }
)
