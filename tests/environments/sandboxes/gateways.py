"""Start, kill and question fake gateways."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.environments.sandboxes import fake_gateway
from tests.environments.sandboxes.waiting import wait_for


class FakeGateway:
    def __init__(self, directory: Path) -> None:
        self.socket = directory / "gateway.sock"
        self.log = directory.parent / "gateway.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        words = [sys.executable, "-S", str(Path(fake_gateway.__file__)), str(self.socket), str(self.log)]
        self.process = subprocess.Popen(words)
        wait_for(self.socket.exists)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def open_gate(self) -> None:
        Path(f"{self.log}.open").touch()

    def events(self, kind: str = "request") -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def acks(self) -> list[str]:
        return [event["call"] for event in self.events() if event["path"] == "/relay/ack"]
