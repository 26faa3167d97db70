"""The account of what reached training adds up, whatever happened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.attempts import make_attempt, make_rollout, request_step
from training.delivery import Fate, account, load_delivery, percentages
from training.models import Group, Member

FATES = st.builds(
    Fate,
    disposition=st.sampled_from(list(Member.Disposition)),
    reason=st.sampled_from(["", "staleness 3 is beyond 1", "dropped by a person", "not scored: verifier error"]),
    no_signal=st.booleans(),
    sampled_tokens=st.integers(0, 10**7),
    trained_tokens=st.integers(0, 10**7),
    rollouts=st.integers(1, 1000),
)


@given(st.lists(FATES, max_size=40))
def test_rollouts_tokens_and_percentages_always_add_up(fates):
    found = account(fates)
    assert found.rollouts == sum(fate.rollouts for fate in fates)
    assert found.tokens == sum(max(fate.sampled_tokens, fate.trained_tokens) for fate in fates)
    if found.rollouts:
        assert round(sum(line.rollouts_percent for line in found.lines), 6) == 100.0
    if found.tokens:
        assert round(sum(line.tokens_percent for line in found.lines), 6) == 100.0
    assert len({line.reason for line in found.lines}) == len(found.lines)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_no_percentage_is_off_by_more_than_a_tenth(values):
    total = sum(values)
    if total:
        for value, percent in zip(values, percentages(values), strict=True):
            assert abs(percent - 100 * value / total) < 0.1 + 1e-9


def test_the_worked_example_of_the_module():
    fate = {"reason": "", "no_signal": False, "sampled_tokens": 100, "trained_tokens": 0}
    found = account(
        [
            Fate(**{**fate, "disposition": "trained", "trained_tokens": 90}),
            Fate(**{**fate, "disposition": "excluded", "reason": "not scored: verifier error"}),
            Fate(**{**fate, "disposition": "pending"}),
        ]
    )
    assert [(line.rollouts, line.tokens) for line in found.lines] == [(1, 90), (1, 100), (1, 100), (0, 10)]
    assert found.delivered.tokens == 90


@pytest.mark.django_db
def test_the_rows_of_an_attempt_are_counted_by_what_became_of_them(tmp_path):
    attempt = make_attempt(tmp_path)
    request_step(attempt, 1, rewards=((1, 0, None), (1, 1, 1)))
    Member.objects.filter(group__index=10, slot__lt=2).update(disposition="trained", trained_tokens=9)
    Member.objects.filter(group__index=10, slot=2).update(disposition="excluded", reason="never scored: verifier error")
    Group.objects.filter(index=11).update(no_signal=True)
    Member.objects.filter(group__index=11).update(disposition="trained", trained_tokens=9)
    make_rollout(attempt, 5)  # no member: not dispatched for training
    found = load_delivery(attempt)
    assert {line.reason: (line.rollouts, line.tokens) for line in found.lines} == {
        "trained": (2, 18),
        "trained without signal (equal rewards in its group)": (3, 27),
        "excluded: never scored: verifier error": (1, 9),
    }
    assert (found.rollouts, found.tokens) == (6, 54)
