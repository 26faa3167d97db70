"""Write a checkpoint or weights, and where the disk is full wait for room instead of dying.

From:  training.trainer_process.
To:    files (by the given function, all or nothing), one RunEvent when the waiting begins and one when it ends.
Holds: what waits is in memory and nowhere half written; a request to stop is heard meanwhile.
"""

import time
from collections.abc import Callable

from django.db import connection

from training.checkpoints import StorageFull
from training.events import record_event, ring
from training.models import Attempt, RunEvent

RETRY_S = 5.0
LOOK_S = 0.15


def write_when_there_is_room(attempt: Attempt, write: Callable[[], int], *, should_stop: Callable[[], bool]) -> int:
    """returns the bytes written. Raises InterruptedError when a stop is asked for."""
    said = False
    while True:
        try:
            size = write()
        except StorageFull as error:
            if not said:
                words = str(error)
                text = f"{words[:1].upper()}{words[1:]}. Free some space: it is tried again every {RETRY_S:.0f} s."
                record_event(attempt, "storage_full", text, RunEvent.Level.ERROR)
                ring(attempt.id)
                said = True
            wait(should_stop)
            continue
        if said:
            record_event(attempt, "storage_freed", "There is room again; the files were written.")
        return size


def wait(should_stop: Callable[[], bool]) -> None:
    if not connection.in_atomic_block:
        connection.close()
    deadline = time.monotonic() + RETRY_S
    while time.monotonic() < deadline:
        if should_stop():
            raise InterruptedError("the trainer was asked to stop while the disk was full")
        time.sleep(LOOK_S)
