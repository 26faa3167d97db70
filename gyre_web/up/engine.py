"""A container engine of one's own, for tests and benches on a machine where none runs.

From:  root, with dockerd installed.
To:    DOCKER_HOST of this process and its children; everything of it in one short temporary directory.
Holds: it ends with its starter; what it ran is removed, its mounts undone.
Never: makes a network: containers of sandboxes have none, builds use the host's.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import docker

from gyre_web.up.processes import die_with_parent

START_TIMEOUT_S = 60.0


class EngineError(RuntimeError):
    """It did not start; the message ends with its last words."""


@cache
def why_no_engine() -> str | None:
    """Why there is none and none can be started; None where there is one or will be."""
    if answers():
        return None
    if os.geteuid() != 0:
        return "no container engine answers, and only root can start one"
    return None if shutil.which("dockerd") else "no container engine: apt-get install docker.io"


def answers() -> bool:
    try:
        docker.from_env(timeout=5).ping()
    except Exception:  # noqa: BLE001 -- whatever it is, there is none
        return False
    return True


class OwnEngine:
    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gd-", dir="/var/tmp"))
        self.socket = self.directory / "s"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Its address, also in DOCKER_HOST. Raises EngineError with its last words where it does not come up."""
        where = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
        words = [word for option, name in where.items() for word in (option, str(self.directory / name))]
        words += ["--bridge", "none", "--iptables=false", "--ip6tables=false"]
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["dockerd", "-H", f"unix://{self.socket}", *words],
                stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent(),
            )  # fmt: skip
        os.environ["DOCKER_HOST"] = f"unix://{self.socket}"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "log").read_text(errors="replace")[-1500:]
                self.stop()
                raise EngineError(f"dockerd does not come up here:\n{said}")
            time.sleep(0.1)
        return os.environ["DOCKER_HOST"]

    def stop(self) -> None:
        if self.process is not None:
            if answers():
                for container in docker.from_env().containers.list(all=True):
                    container.remove(force=True)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.environ.pop("DOCKER_HOST", None)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((path for path in mounts if path.startswith(f"{self.directory}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
