"""A trial from its button to its reward: the real program, sandbox, relay and gateway; the expert answers."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from environments.harnesses import ensure_builtin_harness
from environments.models import Model, Rollout, Task
from environments.tasksets import generate_taskset
from gyre_web.catalog import trials
from tests.environments.rollouts.conftest import drive
from tests.environments.rollouts.processes import Processes

pytestmark = [pytest.mark.harness, pytest.mark.sandbox]


@pytest.fixture
def processes(transactional_db, settings) -> Iterator[Processes]:
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/var/tmp"))  # short: it holds a socket
    root.chmod(0o755)
    settings.DATA_DIR = root / "data"
    settings.GATEWAY_SOCKET_DIR = root / "rt" / "gateway"
    running = Processes(root)
    yield running
    running.stop()
    shutil.rmtree(root, ignore_errors=True)


def test_the_expert_plays_a_task_from_its_page_and_earns_the_reward(processes, sign_in):
    generate_taskset(name="small", seed=1, num_train=12, num_heldout=0)
    Model.objects.create(name="bytes", path="none", renderer="scripted", context_length=8000)
    harness = ensure_builtin_harness()
    task = Task.objects.get(family="mkdir")
    processes.start_gateway()
    client = sign_in("operator")
    with mock.patch.object(trials, "enqueue_rollout"):  # no worker here: the test drives
        answer = client.post(f"/tasks/{task.pk}/try", {"harness": harness.name, "place": "expert"})

    rollout = drive(Rollout.objects.get())

    assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")
    assert client.get(answer["Location"]).status_code == 200
    assert str(rollout.pk) in client.get(f"/tasks/{task.pk}").content.decode()
