"""Rollouts to run harnesses in."""

from tests.environments.rollouts.conftest import make_rollout

__all__ = ["make_rollout"]
