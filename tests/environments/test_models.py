"""Outcomes decide what is scored: a verifier error is never a zero."""

import pytest

from environments.models import Outcome, TaskSet


def test_a_verifier_error_is_neither_scored_nor_in_the_baseline():
    assert not Outcome.VERIFIER_ERROR.is_scored
    assert not Outcome.VERIFIER_ERROR.in_baseline


def test_a_harness_timeout_is_scored():
    assert Outcome.HARNESS_TIMEOUT.is_scored


@pytest.mark.django_db
def test_the_database_is_a_real_postgres():
    TaskSet.objects.create(name="a", source="generated:x", digest="0", directory="/nowhere")
    assert TaskSet.objects.get().name == "a"
