"""Start, find again and end the trainer process of a cell.

From:  training.cells.
To:    `manage.py trainer --cell <uuid>`, in its own session with a log file; it survives whoever started it.
Holds: one trainer a cell: whatever still runs with that cell's id is found by its command line, also when its starter
       died before it could note the pid.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil
from django.conf import settings

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Started by this process: they must be waited for, or they stay as zombies."""


@dataclass(frozen=True, kw_only=True)
class TrainerProcess:
    pid: int
    started: float
    """psutil's create_time: with the pid it names one process for ever."""
    log: Path

    def alive(self) -> bool:
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            return False
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self, grace_s: float = 10.0) -> None:
        """Politely, then surely, with everything it started."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        if child := _children.pop(self.pid, None):
            child.wait()

    def exit_code(self) -> int | None:
        """How it ended, where this process started it."""
        child = _children.get(self.pid)
        return child.poll() if child else None

    def explain(self) -> str:
        """The last lines of its log that look like an error, else its last line."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()[-200:] if line.strip()]
            errors = [line for line in lines if "Error" in line or "error:" in line]
            return f"Log {self.log}: {(errors or lines or ['(empty)'])[-1][:400]}"
        return "It wrote no log."

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if psutil.Process(self.pid).create_time() == self.started:
                os.killpg(self.pid, number)


def trainer_command(cell_id: UUID) -> list[str]:
    return [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "trainer", "--cell", str(cell_id)]


def start_trainer(cell_id: UUID, directory: Path) -> TrainerProcess:
    """directory: for its log. It gets all cores: while it computes, its cell's engine stands still."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "trainer.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            trainer_command(cell_id),
            env=os.environ | _environment(),
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[process.pid] = process
    return TrainerProcess(pid=process.pid, started=psutil.Process(process.pid).create_time(), log=log)


def _environment() -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",
        "TOKENIZERS_PARALLELISM": "false",
    }


def find_trainer(cell_id: UUID, directory: Path) -> TrainerProcess | None:
    """The process that runs for this cell on this host, whoever started it."""
    wanted = trainer_command(cell_id)[-3:]
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "status"]):
        info = process.info
        is_trainer = (info["cmdline"] or [])[-3:] == wanted and info["status"] != psutil.STATUS_ZOMBIE
        if is_trainer and os.getpgid(info["pid"]) == info["pid"]:
            return TrainerProcess(pid=info["pid"], started=info["create_time"], log=directory / "trainer.log")
    return None
