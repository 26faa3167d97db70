"""A rollout to own sandboxes, directories of the test's own, and removal of every sandbox that a test made."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from environments.models import Harness, Model, Rollout, Sandbox, Task, TaskSet
from environments.sandboxes import Handle, Launch, Limits, Sandboxes, bubblewrap, cgroups, get_sandboxes
from tests.containers import share_data

MIB = 1024 * 1024
DOUBLINGS = "for _ in range(9):\n  try:\n    os.fork()\n  except OSError:\n    pass\ntime.sleep(600)\n"
"""A fork bomb that ends at 512 processes: where a limit does not hold, its test must fail, and not the machine."""
LIMITS = Limits(cpu_s=None, memory_bytes=512 * MIB, num_processes=64, file_bytes=256 * MIB, disk_bytes=256 * MIB)


class LaunchShell:
    """Start a bash script in a sandbox; `changes` are fields of Launch."""

    def __init__(self, rollout: Rollout, tree: Path, kind: str, image: str | None) -> None:
        self.rollout = rollout
        self.tree = tree
        self.kind = kind
        self.image = image

    @property
    def is_namespace(self) -> bool:
        return self.kind == "process" and bubblewrap.choose_identity(UUID(int=0)).uid is None

    @property
    def sandboxes(self) -> Sandboxes:
        return get_sandboxes(self.kind)

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
            "image": self.image,
        }
        return Launch(**(order | changes))

    def __call__(self, script: str, **changes: Any) -> Handle:
        return self.sandboxes.launch(self.build(script, **changes))


OWN_USER, USER_NAMESPACE, DOCKER = "own-user-id", "user-namespace", "docker"
GROUPS, ALONE = "control-groups", "supervisor-alone"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that launches runs against both kinds; `each_identity`: and both ways to make a process sandbox;
    `each_enforcement`: and with the kernel's groups and without them (a container always has them)."""
    if "launch_shell" not in metafunc.fixturenames:
        return
    container = pytest.param(DOCKER, marks=pytest.mark.docker)
    names = metafunc.fixturenames
    if metafunc.definition.get_closest_marker("process_only"):
        variants = [OWN_USER, USER_NAMESPACE] if "each_identity" in names else ["process"]
        metafunc.parametrize("variant", variants, indirect=True)
    elif metafunc.definition.get_closest_marker("docker"):
        metafunc.parametrize("variant", [DOCKER], indirect=True)
    elif "each_enforcement" in names:
        ways = [f"{user}/{way}" for user in (OWN_USER, USER_NAMESPACE) for way in (GROUPS, ALONE)]
        metafunc.parametrize("variant", [*ways, container], indirect=True)
    elif "each_identity" in names:
        metafunc.parametrize("variant", [OWN_USER, USER_NAMESPACE, container], indirect=True)
    else:
        metafunc.parametrize("variant", ["process", container], indirect=True)


@pytest.fixture
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of sandbox. Only root can choose who a process sandbox's user is; an ordinary user has a namespace."""
    user, _, way = str(getattr(request, "param", "process")).partition("/")
    if user == OWN_USER and not bubblewrap.owns_all_uids():
        pytest.skip("own user ids for sandboxes need root")
    if user == USER_NAMESPACE:
        monkeypatch.setattr(bubblewrap, "choose_identity", lambda _: bubblewrap.Identity(uid=None))
    if way == GROUPS and not cgroups.parents():
        pytest.skip("no control group is writable here")
    if way == ALONE:
        monkeypatch.setattr(cgroups, "parents", dict)
    return user


@pytest.fixture
def kind(variant: str) -> str:
    return DOCKER if variant == DOCKER else "process"


@pytest.fixture
def each_identity() -> None:
    """Asks for the variants; see pytest_generate_tests."""


@pytest.fixture
def each_enforcement() -> None:
    """Asks for the variants; see pytest_generate_tests."""


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


@pytest.fixture
def docker_image(directories: Path, shared_data: Path, small_image: str) -> str:
    """The engine is up and its image ready for this test's own directories."""
    share_data(shared_data, directories / "data")
    return small_image


@pytest.fixture
def launch_shell(
    rollout: Rollout, directories: Path, kind: str, request: pytest.FixtureRequest
) -> Iterator[LaunchShell]:
    tree = directories / "tree"
    tree.mkdir()
    (tree / "task.txt").write_text("find me\n")
    image = request.getfixturevalue("docker_image") if kind == DOCKER else None
    yield LaunchShell(rollout, tree, kind, image)
    for row in Sandbox.objects.all():
        handle = get_sandboxes(row.kind).attach(row)
        if handle is not None:
            handle.remove()
