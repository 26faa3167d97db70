"""A program runs in a sandbox: what goes in, what comes out, how it ends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from environments.sandboxes import SandboxError, docker
from tests.environments.sandboxes.conftest import LaunchShell
from tests.environments.sandboxes.waiting import wait_end, wait_for

pytestmark = pytest.mark.sandbox


def test_this_machine_can_make_sandboxes(launch_shell: LaunchShell) -> None:
    assert launch_shell.sandboxes.check() is None


def test_a_program_sees_its_work_tree_and_its_output_and_exit_code_come_back(launch_shell: LaunchShell) -> None:
    handle = launch_shell("pwd; cat task.txt; echo oops >&2; echo done > /logs/out; id -u | wc -l; echo $HOME; exit 7")

    status = wait_end(handle)

    assert (status.exit_code, status.timed_out, status.limit) == (7, False, "")
    assert handle.read_output(0) == b"/work\nfind me\noops\n1\n/home/agent\n"
    assert handle.read_output(6) == b"find me\noops\n1\n/home/agent\n"
    assert (handle.logs / "out").read_text() == "done\n"


@pytest.mark.docker
def test_a_program_that_ended_before_anybody_looked_was_started_all_the_same(
    launch_shell: LaunchShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher was not given the processor between its look at the state and its look at the process."""
    real, looks = docker.read_state, []

    def look_late(directory: Path) -> Mapping[str, Any]:
        looks.append(directory)
        if len(looks) > 1:
            return real(directory)
        (directory / "work" / "go").touch()
        wait_for(lambda: not real(directory).get("running", True))
        return {}

    monkeypatch.setattr(docker, "read_state", look_late)
    handle = launch_shell("while [ ! -e go ]; do sleep 0.05; done; exit 3")

    assert len(looks) > 1
    assert wait_end(handle).exit_code == 3


@pytest.mark.process_only
def test_an_image_or_a_network_is_refused_by_name(launch_shell: LaunchShell) -> None:
    with pytest.raises(SandboxError, match="cannot have the image sha256:1"):
        launch_shell("true", image="sha256:1")
    with pytest.raises(SandboxError, match="cannot have a network"):
        launch_shell("true", egress=Path("/nowhere.sock"))
