"""A real agent program through sandbox, relay and gateway; and what happens when parts of Gyre are killed."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from environments import live
from environments.config import Budgets, Sampling
from environments.harnesses import ensure_builtin_harness
from environments.models import Call, Engine, Model, Node, Rollout, Sandbox, Task
from environments.rollouts import create_rollout
from environments.tasksets import generate_taskset
from tests.environments.rollouts.conftest import drive
from tests.environments.rollouts.processes import Processes, wait_for

pytestmark = [pytest.mark.harness, pytest.mark.sandbox]

BUDGETS = Budgets(max_sampled_tokens=2000, max_context_tokens=4000, max_calls=12)
THINK = "I shall write the line to the file that was asked for, and then I shall submit. "


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


def add_engine(base_url: str) -> None:
    Engine.objects.create(pool="p", name="one", base_url=base_url, model_name="scripted", state=Engine.State.SERVING)


def make_rollout(family: str, **sampling: int) -> Rollout:
    generate_taskset(name="small", seed=1, num_train=12, num_heldout=0)
    model = Model.objects.create(name="bytes", path="none", renderer="scripted", context_length=8000)
    return create_rollout(
        task=Task.objects.get(family=family),
        model=model,
        harness=ensure_builtin_harness(),
        purpose=Rollout.Purpose.DEMONSTRATION,
        pool="p",
        sampling=Sampling(max_tokens=sampling.get("max_tokens", 300)),
        budgets=BUDGETS,
    )


def rules_for(rollout: Rollout) -> list[tuple[str, str]]:
    """What the scripted engine says: think, act, submit."""
    solution = (Path(rollout.task.directory) / "solution" / "solve.sh").read_text().splitlines()[-1]
    return [(".", f"{THINK}\n```bash\n{solution}\n```"), ("exit 0", "```bash\nsubmit\n```")]


def is_sampling(rollout: Rollout) -> bool:
    """Some tokens of the first call are there; it has some 120 and gets 60 a second."""
    return any(entry.kind == "tokens" for entry in async_to_sync(live.read)(rollout.pk, None).entries)


def test_an_experts_rollout_is_recorded_and_earns_the_reward(processes):
    rollout = make_rollout("mkdir")
    add_engine("expert://mini-swe-agent")
    processes.start_gateway()
    drive(rollout)
    assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")
    nodes = list(Node.objects.filter(rollout=rollout))
    assert [node.parent for node in nodes] == [None, *range(len(nodes) - 1)]
    assert [node.role for node in nodes][:3] == ["system", "user", "assistant"]
    assert all(node.behaviour_logprobs is None for node in nodes)
    assert nodes[-1].message["content"] == "```bash\nsubmit\n```"
    assert "exit status: Submitted" in rollout.harness_output
    assert rollout.num_calls == len([node for node in nodes if node.sampled])


def test_a_budget_ends_a_rollout_and_what_is_left_is_graded(processes):
    rollout = make_rollout("create")
    Rollout.objects.filter(pk=rollout.pk).update(budgets=BUDGETS.model_copy(update={"max_calls": 1}).model_dump())
    add_engine("expert://mini-swe-agent")
    processes.start_gateway()
    drive(rollout)
    assert (rollout.outcome, rollout.reward) == ("budget_reached", 1.0)


@pytest.mark.slow
def test_a_worker_killed_in_mid_call_is_followed_by_another_that_finds_the_sandbox(processes):
    rollout = make_rollout("create")
    add_engine(processes.start_engine(rules_for(rollout), tokens_per_s=60))
    processes.start_gateway()
    worker = processes.start_worker(rollout.pk)
    wait_for(lambda: is_sampling(rollout))
    worker.kill()
    worker.wait()
    expired = timezone.now() - timedelta(seconds=1)
    Rollout.objects.filter(pk=rollout.pk).update(lease_expires_at=expired)  # as the clock would
    drive(rollout, owner="second")
    assert (rollout.outcome, rollout.reward, rollout.lease_epoch) == ("completed", 1.0, 2)
    assert Sandbox.objects.filter(rollout=rollout, purpose="agent").count() == 1
    assert rollout.num_calls == Call.objects.filter(rollout=rollout, state="completed").count() == 2


@pytest.mark.slow
def test_a_gateway_killed_in_mid_call_is_nothing_that_the_harness_sees(processes):
    rollout = make_rollout("create")
    add_engine(processes.start_engine(rules_for(rollout), tokens_per_s=60))
    gateway = processes.start_gateway()
    worker = processes.start_worker(rollout.pk)
    wait_for(lambda: is_sampling(rollout))
    gateway.kill()
    gateway.wait()
    processes.start_gateway()
    worker.wait(60)
    rollout.refresh_from_db()
    assert (rollout.outcome, rollout.reward) == ("completed", 1.0)
    assert rollout.harness_output.count("assistant:") == 2
    assert Call.objects.filter(rollout=rollout).count() == 2
    assert Node.objects.filter(rollout=rollout, sampled=True).count() == 2


@pytest.mark.slow
def test_a_sandbox_lost_after_a_call_is_followed_by_one_that_is_answered_from_the_record(processes):
    rollout = make_rollout("create")
    add_engine(processes.start_engine(rules_for(rollout), tokens_per_s=10))
    processes.start_gateway()
    worker = processes.start_worker(rollout.pk)
    wait_for(lambda: Call.objects.filter(rollout=rollout, state="completed").exists())
    first = Sandbox.objects.get(rollout=rollout, purpose="agent")
    os.kill(first.handle["pid"], signal.SIGKILL)
    worker.wait(120)
    rollout.refresh_from_db()
    assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")
    assert Sandbox.objects.filter(rollout=rollout, purpose="agent").count() == 2
    replayed = Call.objects.get(rollout=rollout, replay_of__isnull=False)
    assert (replayed.state, replayed.num_sampled_tokens, replayed.replay_of.index) == ("completed", 0, 0)
    assert Node.objects.filter(rollout=rollout, trainable=True).count() == 2
