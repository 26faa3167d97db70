"""Real services and processes for a bench, from a clean state, gone when it ends.

From:  benches.
To:    an embedded, durable Postgres and Valkey that Django of this process uses too; children with the same settings.
Holds: whatever happens, every process is ended and the directory removed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections

from gyre_web.settings import database_settings
from gyre_web.up.processes import stop_process
from gyre_web.up.services import EmbeddedPostgres, EmbeddedValkey

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Stage:
    directory: Path
    environment: dict[str, str]
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, arguments: Sequence[str], *, ready: Path, timeout_s: float = 30.0) -> "subprocess.Popen[bytes]":
        """A Python child; returns when the socket `ready` exists."""
        log = (self.directory / f"child-{len(self.children)}.log").open("wb")
        child = subprocess.Popen([sys.executable, *arguments], env=self.environment, stdout=log, stderr=log)
        self.children.append(child)
        deadline = time.monotonic() + timeout_s
        while not ready.exists():
            if child.poll() is not None or time.monotonic() > deadline:
                text = Path(log.name).read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{' '.join(arguments)} did not start:\n{text}")
            time.sleep(0.02)
        return child

    def stop(self) -> None:
        for child in self.children:
            stop_process(child, signal.SIGTERM, patience_s=5.0)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def stage(*, durable: bool = True) -> Iterator[Stage]:
    """durable False: nothing that is measured depends on the disk."""
    directory = Path(tempfile.mkdtemp(prefix="gyre-bench-", dir="/var/tmp"))
    directory.chmod(0o755)
    postgres = EmbeddedPostgres(directory=directory, durable=durable)
    valkey = EmbeddedValkey(directory=directory, durable=durable)
    made: Stage | None = None
    before = dict(settings.DATABASES["default"]), settings.REDIS_URL
    try:
        postgres.start()
        valkey.start()
        urls = {
            "DATABASE_URL": postgres.url(),
            "REDIS_URL": valkey.url(),
            "GYRE_DATA": str(directory / "data"),
            "GYRE_RUNTIME": str(directory / "rt"),
            "DJANGO_SETTINGS_MODULE": "gyre_web.settings",
        }
        made = Stage(directory=directory, environment={**os.environ, **urls})
        connections["default"].close()
        connections["default"].settings_dict.update(database_settings(postgres.url()))
        settings.REDIS_URL = valkey.url()
        call_command("migrate", verbosity=0)
        yield made
    finally:
        connections["default"].close()
        connections["default"].settings_dict.update(before[0])
        settings.REDIS_URL = before[1]
        if made:
            made.stop()
        valkey.stop()
        postgres.stop()
        shutil.rmtree(directory, ignore_errors=True)
