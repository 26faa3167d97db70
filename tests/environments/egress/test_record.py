"""Requests become rows; a denied one becomes a flag with evidence."""

import pytest

from environments.egress import record
from environments.egress.proxy import Asked
from environments.egress.record import Recorder, find_network_flags
from environments.models import EgressRequest
from tests.environments.rollouts.conftest import make_rollout

__all__ = ["make_rollout"]


def test_a_request_is_one_row_from_its_verdict_to_its_end(make_rollout) -> None:
    rollout = make_rollout()
    recorder = Recorder(rollout.pk)
    asked = Asked(method="CONNECT", host="site.test", port=443)
    recorder(asked, False)
    assert EgressRequest.objects.get().duration_s is None
    asked.received_bytes = 10
    recorder(asked, True)
    row = EgressRequest.objects.get()
    assert (row.received_bytes, row.verdict) == (10, "allowed")
    assert row.duration_s is not None
    assert find_network_flags(rollout.pk) == []


def test_what_was_denied_is_a_flag_that_names_it(make_rollout) -> None:
    rollout = make_rollout()
    recorder = Recorder(rollout.pk)
    for host in ("a.test", "b.test", "b.test"):
        recorder(Asked(method="CONNECT", host=host, port=443, verdict="denied", reason="not listed"), True)
    [flag] = find_network_flags(rollout.pk)
    assert (flag.kind, flag.evidence) == ("network_tried", "b.test:443 (not listed) x 2, a.test:443 (not listed)")


def test_rows_are_bounded_and_the_rest_is_counted(make_rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_ROWS", 2)
    recorder = Recorder(make_rollout().pk)
    for _ in range(5):
        recorder(Asked(method="GET", host="a.test", port=80), True)
    assert EgressRequest.objects.count() == 2
    assert recorder.dropped == 3
