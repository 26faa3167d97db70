"""Real processes of a small Gyre beside the test: gateway, scripted engine, a rollout worker that can be killed."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from django.conf import settings

ROOT = Path(__file__).resolve().parents[3]
WORKER = """
import sys, threading, uuid, django
django.setup()
from environments.rollouts import run_rollout
run_rollout(uuid.UUID(sys.argv[1]), owner="worker", stop=threading.Event())
"""


def wait_for(condition: Callable[[], Any], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Everything started through it is killed by `stop`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[bytes]] = []

    def environment(self) -> dict[str, str]:
        """This test's database and directories, for another process."""
        parts = urlsplit(os.environ["DATABASE_URL"])
        url = urlunsplit(parts._replace(path="/" + str(settings.DATABASES["default"]["NAME"])))
        return {
            **os.environ,
            "DATABASE_URL": url,
            "GYRE_DATA": str(settings.DATA_DIR),
            "GYRE_RUNTIME": str(Path(settings.GATEWAY_SOCKET_DIR).parent),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, *words], env=self.environment(), cwd=ROOT)
        self.started.append(process)
        return process

    def start_gateway(self) -> subprocess.Popen[bytes]:
        process = self.start("-m", "environments.gateway")
        wait_for(self._gateway_answers)
        return process

    def start_engine(self, rules: Sequence[Any], tokens_per_s: float = 0.0, audit: Path | None = None) -> str:
        """Its base URL. rules: see environments.scripted.script."""
        script, port = self.root / "script.json", free_port()
        script.write_text(json.dumps(rules))
        words = ["--port", str(port), "--script", str(script), "--tokens-per-s", str(tokens_per_s)]
        words += ["--audit", str(audit)] if audit else []
        self.start("-m", "environments.scripted.engine", *words)
        return f"http://127.0.0.1:{port}"

    def start_worker(self, rollout_id: UUID) -> subprocess.Popen[bytes]:
        return self.start("-c", WORKER, str(rollout_id))

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def _gateway_answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(Path(settings.GATEWAY_SOCKET_DIR) / "gateway.sock"))
            except OSError:
                return False
        return True
