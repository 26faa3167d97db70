"""`manage.py trainer --cell <uuid>`: the trainer process of one cell. Started by the cell's job."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

PREPARED = "GYRE_TRAINER_PREPARED"


class Command(BaseCommand):
    requires_system_checks: list[str] = []
    help = "Train what the controller orders for one cell, until stopped or its attempt is over."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--cell", type=UUID, required=True, help="Id of the cell.")

    def handle(self, *args: Any, **options: Any) -> None:
        prepare_environment()
        from training.models import Cell
        from training.step_commit import TrainerBusy
        from training.trainer_process import TrainerLoop

        stop = threading.Event()

        def ask(number: int, frame: FrameType | None) -> None:
            stop.set()

        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, ask)
        try:
            TrainerLoop(cell_id=options["cell"], should_stop=stop.is_set).run()
        except TrainerBusy as error:
            raise CommandError(str(error), returncode=75) from error
        except Cell.DoesNotExist as error:
            raise CommandError(f"there is no cell {options['cell']}") from error


def prepare_environment() -> None:
    """Allocator and OpenMP read their settings only when a process starts: begin again with them, same pid."""
    if os.environ.get(PREPARED):
        return
    from training.memory import trainer_environment, usable_cores

    cores = int(os.environ.get("OMP_NUM_THREADS", usable_cores()))
    environment = trainer_environment(os.environ, cores=cores) | {PREPARED: "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
