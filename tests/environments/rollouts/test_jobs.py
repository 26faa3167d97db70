"""A Celery worker drives rollouts from the queue and gives them back when it is told to end."""

import signal

import pytest

from environments.models import Rollout
from environments.rollouts import enqueue_rollout
from environments.sandboxes import get_sandboxes
from tests.environments.rollouts.processes import Processes, wait_for

WORKER = ("-m", "celery", "-A", "gyre_web", "worker", "-Q", "rollouts", "-P", "threads", "-c", "4", "-l", "WARNING")


@pytest.mark.sandbox
@pytest.mark.slow
def test_a_worker_drives_what_is_enqueued_and_leaves_the_rest_to_the_next_one(make_rollout, tmp_path):
    processes = Processes(tmp_path)
    quick = make_rollout("printf good > out.txt")
    long = make_rollout("while [ ! -e go ]; do sleep 0.1; done")
    worker = processes.start(*WORKER)
    try:
        for rollout in (long, quick, quick):
            enqueue_rollout(rollout.pk)
        wait_for(lambda: Rollout.objects.filter(pk=quick.pk, state="ended", reward=1.0).exists())
        wait_for(lambda: Rollout.objects.filter(pk=long.pk, state="running").exists())
        worker.send_signal(signal.SIGTERM)
        worker.wait(20)
    finally:
        processes.stop()
    quick.refresh_from_db()
    long.refresh_from_db()
    assert quick.lease_epoch == 1
    assert (long.state, long.lease_owner, long.lease_expires_at) == ("running", "", None)
    for row in long.sandboxes.all():
        handle = get_sandboxes("process").attach(row)
        assert handle is not None
        assert handle.status().running
        handle.remove()
