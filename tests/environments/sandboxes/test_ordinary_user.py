"""Without root: the same sandbox by a user namespace, started by a user who owns nothing but a directory."""

import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from environments.models import Sandbox
from environments.sandboxes import Launch, bubblewrap
from environments.sandboxes.process import ProcessHandle, choose_and_start
from tests.environments.sandboxes.conftest import LIMITS
from tests.environments.sandboxes.waiting import wait_end

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="every other test is run by an ordinary user already"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs a Python that every user can read"),
]
STRANGER = 61_234


def run_as_stranger(directory: Path, settings: Any) -> str:
    """What the harness said. No database: this user cannot reach it."""
    settings.DATA_DIR = directory
    row = Sandbox(id=uuid4(), directory=str(directory / "sandboxes"))
    row.directory = str(directory / "sandboxes" / str(row.id))
    launch = Launch(
        rollout_id=uuid4(),
        session_id=None,
        purpose="agent",
        command=["/bin/sh", "-c", "cat in; id -u; echo new > made; grep CapEff /proc/self/status"],
        environment={},
        work_tree=directory / "tree",
        read_only=(),
        gateway=False,
        timeout_s=20.0,
        limits=LIMITS,
    )
    row.handle = choose_and_start(str(shutil.which("bwrap")), row.id, launch)
    handle = ProcessHandle(row)
    wait_end(handle)
    return handle.read_output(0).decode() + (handle.work_tree / "made").read_text()


def test_an_ordinary_user_can_run_a_sandbox(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path("/var/tmp") / f"gyre-stranger-{uuid4().hex[:8]}"
    (directory / "tree").mkdir(parents=True)
    (directory / "tree" / "in").write_text("hello\n")
    for name in bubblewrap.PROGRAM_FILES:
        shutil.copy(bubblewrap.PROGRAMS / name, directory / name)
    for path in (directory, directory / "tree"):
        os.chown(path, STRANGER, STRANGER)
    monkeypatch.setattr(bubblewrap, "PROGRAMS", directory)
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, "/usr")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    said = directory / "said"

    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            said.write_text(run_as_stranger(directory, settings))
        except BaseException:  # noqa: BLE001 - the child must not come back as a second test run
            said.write_text(traceback.format_exc())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = said.read_text()
    shutil.rmtree(directory)

    assert text == "hello\n1000\nCapEff:\t0000000000000000\nnew\n"
