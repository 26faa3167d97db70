"""The numbers of a run as TensorBoard event files, beside the rows, where a directory is configured.

From:  training.metrics.save_metrics, after its transaction.
To:    <TENSORBOARD_DIR>/<run>/<attempt>/events.out.tfevents.*; `tensorboard --logdir <TENSORBOARD_DIR>` shows them.
Holds: several processes (trainer, controller) write files of their own into one run's directory, which TensorBoard
       reads as one; a directory that cannot be written costs a log line, never a step. A step that is done again
       after a crash writes its numbers again; TensorBoard shows the later ones beside them, the rows have only those.
"""

import logging
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from training.models import Attempt

log = logging.getLogger(__name__)
ODD = re.compile(r"[^A-Za-z0-9._-]+")


def write_events(attempt: Attempt, *, kind: str, step: int, values: Mapping[str, float]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    try:
        writer = open_writer(attempt.pk, str(directory_of(attempt)))
        summary = Summary(value=[Summary.Value(tag=f"{kind}/{key}", simple_value=v) for key, v in values.items()])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()
    except OSError as error:
        log.warning("event file not written", extra={"attempt": str(attempt.pk), "error": str(error)})


def directory_of(attempt: Attempt) -> Path:
    """A run's name may hold anything; its directory may not."""
    name = ODD.sub("-", attempt.run.name).strip(".") or str(attempt.run_id)
    return Path(settings.TENSORBOARD_DIR) / name / str(attempt.number)


@lru_cache(maxsize=8)
def open_writer(attempt_id: UUID, directory: str) -> Any:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(directory)
