"""Make a directory of checked tasks public: its place in the data directory and its rows, both or neither.

From:  environments.tasksets.importing, environments.tasksets.catalog (generated sets).
To:    DATA_DIR/tasksets/<name>/, TaskSet and Task rows.
Holds: a version never changes; contents that a name has already give that version again. Of two that publish under one
       name at once, the second waits for the first.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction

from environments.models import Task, TaskSet
from environments.tasksets.harbor import HarborTask, read_task


def tasksets_directory() -> Path:
    return Path(settings.DATA_DIR) / "tasksets"


def publish(*, base_name: str, directory: Path, source: str, description: str) -> tuple[TaskSet, bool]:
    """Move the directory to its place and add its rows: (the set, whether it is new).

    directory: on the file system of the data directory. Raises InvalidTask, OSError.
    """
    tasks = [read_task(path) for path in sorted(directory.iterdir()) if path.is_dir()]
    digest = digest_tasks(tasks)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("select pg_advisory_xact_lock(hashtext(%s))", [f"taskset:{base_name}"])
        versions = TaskSet.objects.filter(base_name=base_name).order_by("version")
        known = versions.filter(digest=digest).first()
        if known and Path(known.directory).is_dir():
            return known, False
        if known:
            _move(directory, Path(known.directory))
            return known, False
        newest = versions.last()
        version = newest.version + 1 if newest else 1
        name = base_name if version == 1 else f"{base_name}@{version}"
        destination = tasksets_directory() / name
        _move(directory, destination)
        taskset = TaskSet.objects.create(
            name=name,
            base_name=base_name,
            version=version,
            source=source,
            digest=digest,
            directory=str(destination),
            description=description,
        )
        rows = [build_row(taskset, task, destination / task.name) for task in tasks]
        Task.objects.bulk_create(rows, batch_size=500)
    return taskset, True


def digest_tasks(tasks: Sequence[HarborTask]) -> str:
    return hashlib.sha256("".join(task.name + task.digest for task in tasks).encode()).hexdigest()


def _move(directory: Path, destination: Path) -> None:
    """A directory without a row is what a kill left."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if destination.exists():
        shutil.rmtree(destination)
    directory.chmod(0o755)
    os.rename(directory, destination)


def build_row(taskset: TaskSet, task: HarborTask, directory: Path) -> Task:
    split = Task.Split.HELDOUT if task.split in ("heldout", "test") else Task.Split.TRAIN
    return Task(
        taskset=taskset,
        name=task.name,
        family=task.family,
        split=split,
        directory=str(directory),
        instruction=task.instruction,
        digest=task.digest,
        image=task.image,
        agent_timeout_s=task.settings.agent.timeout_sec,
        verifier_timeout_s=task.settings.verifier.timeout_sec,
        settings=task.raw,
    )
