"""A rollout to own sandboxes, directories of the test's own, and removal of every sandbox that a test made."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.models import Harness, Model, Rollout, Sandbox, Task, TaskSet
from environments.sandboxes import Handle, Launch, Limits, bubblewrap, cgroups, get_sandboxes

MIB = 1024 * 1024
LIMITS = Limits(cpu_s=None, memory_bytes=512 * MIB, num_processes=64, file_bytes=256 * MIB, disk_bytes=256 * MIB)


class LaunchShell:
    """Start a bash script in a sandbox; `changes` are fields of Launch."""

    def __init__(self, rollout: Rollout, tree: Path) -> None:
        self.rollout = rollout
        self.tree = tree

    def build(self, script: str, **changes: Any) -> Launch:
        order: dict[str, Any] = {
            "rollout_id": self.rollout.id,
            "session_id": None,
            "purpose": "agent",
            "command": ["/bin/bash", "-c", script],
            "environment": {},
            "work_tree": self.tree,
            "read_only": (),
            "gateway": False,
            "timeout_s": 60.0,
            "limits": LIMITS,
        }
        return Launch(**(order | changes))

    def __call__(self, script: str, **changes: Any) -> Handle:
        return get_sandboxes("process").launch(self.build(script, **changes))


@pytest.fixture
def rollout(db: None) -> Rollout:
    taskset = TaskSet.objects.create(name="set", source="generated:none", digest="0", directory="/nowhere")
    task = Task.objects.create(
        taskset=taskset, name="task", directory="/nowhere", agent_timeout_s=60, verifier_timeout_s=60
    )
    return Rollout.objects.create(
        task=task,
        model=Model.objects.create(name="model", renderer="scripted", context_length=1000),
        harness=Harness.objects.create(name="harness", program="none", version="1"),
        pool="pool",
    )


@pytest.fixture
def directories(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    settings.GATEWAY_SOCKET_DIR = tmp_path / "gateway"
    (tmp_path / "gateway").mkdir()
    assert len(os.fsencode(tmp_path / "gateway" / "gateway.sock")) < 108
    return tmp_path


@pytest.fixture(params=["own-user-id", "user-namespace"])
def each_identity(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two ways to isolate. Only root can choose; an ordinary user has the second alone."""
    if request.param == "own-user-id" and not bubblewrap.owns_all_uids():
        pytest.skip("own user ids for sandboxes need root")
    if request.param == "user-namespace":
        monkeypatch.setattr(bubblewrap, "choose_identity", lambda _: bubblewrap.Identity(uid=None))
    return str(request.param)


@pytest.fixture(params=["control-groups", "supervisor-alone"])
def each_enforcement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What holds the limits: the kernel's groups where we may make them, else the supervisor's own watching."""
    if request.param == "control-groups" and not cgroups.parents():
        pytest.skip("no control group is writable here")
    if request.param == "supervisor-alone":
        monkeypatch.setattr(cgroups, "parents", dict)
    return str(request.param)


@pytest.fixture
def launch_shell(rollout: Rollout, directories: Path) -> Iterator[LaunchShell]:
    tree = directories / "tree"
    tree.mkdir()
    (tree / "task.txt").write_text("find me\n")
    yield LaunchShell(rollout, tree)
    for row in Sandbox.objects.all():
        handle = get_sandboxes("process").attach(row)
        if handle is not None:
            handle.remove()
