"""A real agent program in a container, through relay, gateway and verifier; and what its end leaves behind."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from environments.config import Sampling
from environments.harnesses import ensure_builtin_harness
from environments.models import Model, Rollout, Sandbox, Task
from environments.rollouts import create_rollout
from environments.sandboxes import engine_client
from environments.sandboxes.audit import find_traces
from environments.tasksets import generate_taskset
from tests.containers import share_data
from tests.environments.rollouts.conftest import MakeRollout, drive
from tests.environments.rollouts.processes import Processes, wait_for
from tests.environments.rollouts.test_end_to_end import BUDGETS, add_engine, is_sampling, rules_for

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def processes(transactional_db, settings, shared_data, small_image) -> Iterator[Processes]:
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/var/tmp"))  # short: it holds a socket
    root.chmod(0o755)
    settings.DATA_DIR = root / "data"
    settings.GATEWAY_SOCKET_DIR = root / "rt" / "gateway"
    share_data(shared_data, root / "data")
    running = Processes(root)
    yield running
    running.stop()
    shutil.rmtree(root, ignore_errors=True)


def make_container_rollout(family: str, image: str) -> Rollout:
    generate_taskset(name="small", seed=1, num_train=12, num_heldout=0)
    Task.objects.filter(family=family).update(image=image)
    return create_rollout(
        task=Task.objects.get(family=family),
        model=Model.objects.create(name="bytes", path="none", renderer="scripted", context_length=8000),
        harness=ensure_builtin_harness(),
        purpose=Rollout.Purpose.DEMONSTRATION,
        pool="p",
        sampling=Sampling(max_tokens=300),
        budgets=BUDGETS,
    )


@pytest.mark.harness
def test_mini_swe_agent_solves_a_task_in_a_container_and_nothing_of_it_is_left(processes, small_image):
    rollout = make_container_rollout("create", small_image)
    add_engine(processes.start_engine(rules_for(rollout)))
    processes.start_gateway()

    drive(rollout)

    assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")
    assert rollout.num_calls == 2
    assert "+++ b/" in rollout.diff
    sandboxes = Sandbox.objects.filter(rollout=rollout).order_by("created_at")
    assert [(row.kind, row.purpose) for row in sandboxes] == [("docker", "agent"), ("docker", "verifier")]
    assert sandboxes[0].image == small_image
    assert sandboxes[1].image not in ("", small_image)  # made from what the agent's container became
    assert find_traces() == {}


@pytest.mark.harness
def test_a_worker_killed_in_mid_call_is_followed_by_another_that_finds_the_container(processes, small_image):
    rollout = make_container_rollout("create", small_image)
    add_engine(processes.start_engine(rules_for(rollout), tokens_per_s=60))
    processes.start_gateway()
    worker = processes.start_worker(rollout.pk)
    wait_for(lambda: is_sampling(rollout), 60)
    worker.kill()
    worker.wait()
    expired = timezone.now() - timedelta(seconds=1)
    Rollout.objects.filter(pk=rollout.pk).update(lease_expires_at=expired)  # as the clock would

    drive(rollout, owner="second")

    assert (rollout.outcome, rollout.reward, rollout.lease_epoch) == ("completed", 1.0, 2)
    assert Sandbox.objects.filter(rollout=rollout, purpose="agent").count() == 1
    assert find_traces() == {}


@pytest.fixture
def make_image_rollout(make_rollout: MakeRollout, settings, shared_data, small_image):
    share_data(shared_data, Path(settings.DATA_DIR))

    def make(command: str, image: str = "", **changes):
        rollout = make_rollout(command, **changes)
        Task.objects.filter(pk=rollout.task_id).update(image=image or small_image)
        rollout.refresh_from_db()
        return rollout

    return make


def test_what_an_agent_changed_outside_its_work_tree_is_there_when_it_is_graded(make_image_rollout):
    test = "#!/bin/sh\ncat /var/tmp/mark > /logs/verifier/reward.txt\n"
    rollout = drive(make_image_rollout("echo 0.5 > /var/tmp/mark", test=test))
    assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 0.5, "")


def test_an_image_that_is_not_there_ends_the_rollout_by_name(make_image_rollout):
    rollout = drive(make_image_rollout("true", image="nobody/has-it:1"))
    assert (rollout.outcome, rollout.reward) == ("image_unavailable", None)
    assert "nobody/has-it:1" in rollout.error
    assert engine_client.own_containers() == []


def test_a_task_that_needs_an_image_is_refused_where_process_sandboxes_are_wanted(make_image_rollout):
    rollout = make_image_rollout("true")
    Rollout.objects.filter(pk=rollout.pk).update(sandboxing="process")
    drive(rollout)
    assert rollout.outcome == "image_unavailable"
    assert "process sandboxes have none" in rollout.error
