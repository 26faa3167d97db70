"""From `start_run` to COMPLETED, every part a real process: the main job of Gyre, small."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from environments.sandboxes.reaper import running_sandboxes
from gyre_web.up.processes import start_time
from tests.end_to_end import audit
from tests.end_to_end.tiny import TinySystem, tiny_system
from training.models import Member

pytestmark = [pytest.mark.harness, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def running(django_db_blocker) -> Iterator[ExitStack]:
    """Holds the system; a test may end it early."""
    with django_db_blocker.unblock(), ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def system(running) -> TinySystem:
    return running.enter_context(tiny_system())


def test_a_run_completes_by_itself_and_everything_is_accounted_for(system):
    attempt = system.wait_until_over(system.start())
    audit.check_everything(system, attempt)
    members = Member.objects.filter(group__attempt=attempt)
    assert {member.rollout.reward for member in members} == {0.0, 1.0}
    assert any(member.advantage for member in members)
    audit.check_nothing_is_left(system, attempt)


def test_a_system_that_is_stopped_in_the_middle_of_a_run_leaves_no_process_behind(system, running):
    attempt = system.start()
    cell = system.wait_for(lambda: attempt.cells.filter(processes__has_key="trainer").first(), "a trainer runs")
    system.wait_for(running_sandboxes, "a sandbox runs")
    parts = [item.process.pid for item in system.supervisor.running.values()]
    running.close()
    assert not system.processes()
    left = [pid for pid in [*parts, cell.processes["trainer"]["pid"]] if start_time(pid) is not None]
    assert not left
