"""Turn directories of tasks into rows: the built-in set, and imports.

From:  `manage.py tasks`, `manage.py up` (built-in set), environments.tasksets.harbor.
To:    TaskSet and Task rows.
Holds: a set's directory is complete before its row exists (written aside, then renamed); doing it twice is harmless.
Never: changes a task that has rollouts; a set with other contents needs another name.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.db import transaction

from environments.models import Task, TaskSet
from environments.tasksets import shell_and_python
from environments.tasksets.harbor import HarborTask, InvalidTask, Problem, read_task

BUILTIN_NAME = "shell-and-python"
BUILTIN_SEED = 1


class InvalidTaskSet(ValueError):
    """Some of the tasks cannot be used; `tasks` holds one InvalidTask for each."""

    def __init__(self, directory: Path, tasks: Sequence[InvalidTask]) -> None:
        self.tasks = list(tasks)
        super().__init__(f"{directory} cannot be imported.\n" + "\n".join(str(task) for task in tasks))


def tasksets_directory() -> Path:
    return Path(settings.DATA_DIR) / "tasksets"


def ensure_builtin_taskset() -> TaskSet:
    """The row of the built-in set; its tasks are generated, checked and added if they are not there yet."""
    found = TaskSet.objects.filter(name=BUILTIN_NAME).first()
    if found and Path(found.directory).is_dir():
        return found
    return generate_taskset(name=BUILTIN_NAME, seed=BUILTIN_SEED)


def generate_taskset(*, name: str, seed: int, num_train: int = 600, num_heldout: int = 240) -> TaskSet:
    """Write the generated set to the data directory and add its rows. The same seed gives the same bytes."""
    destination = tasksets_directory() / name
    if not destination.is_dir():
        _write_aside(destination, seed=seed, num_train=num_train, num_heldout=num_heldout)
    return _save_rows(
        name=name,
        source=f"generated:{shell_and_python.NAME}",
        directory=destination,
        description=f"Small shell and Python tasks of {len(shell_and_python.FAMILIES)} families (seed {seed}).",
    )


def import_taskset(*, name: str, directory: Path, description: str = "") -> TaskSet:
    """Copy a directory of Harbor task directories into the data directory and add its rows.

    Raises InvalidTaskSet with every problem of every task, before anything is written.
    """
    read_tasks(directory)
    destination = tasksets_directory() / name
    if destination.exists():
        raise FileExistsError(f"A task set called {name} exists already ({destination}); choose another name.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=destination.parent))
    try:
        shutil.copytree(directory, aside / "set", symlinks=True)
        (aside / "set").rename(destination)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return _save_rows(
        name=name, source=f"imported:{directory.name}"[:200], directory=destination, description=description
    )


def read_tasks(directory: Path) -> list[HarborTask]:
    """Every task of a set, in order of name. Raises InvalidTaskSet with all problems of all tasks."""
    tasks: list[HarborTask] = []
    invalid: list[InvalidTask] = []
    for path in sorted(entry for entry in directory.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        try:
            tasks.append(read_task(path))
        except InvalidTask as error:
            invalid.append(error)
    if not tasks and not invalid:
        problem = Problem(file=str(directory), message="holds no task directory.")
        invalid.append(InvalidTask(directory, [problem]))
    if invalid:
        raise InvalidTaskSet(directory, invalid)
    return tasks


def _write_aside(destination: Path, *, seed: int, num_train: int, num_heldout: int) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        for task in shell_and_python.build_tasks(seed=seed, num_train=num_train, num_heldout=num_heldout):
            shell_and_python.write_task(task, aside / "set" / task.name)
        _rename_unless_there(aside / "set", destination)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename_unless_there(source: Path, destination: Path) -> None:
    """Two processes may generate at once: the second finds the first one's (identical) directory."""
    try:
        os.rename(source, destination)
    except OSError:
        if not destination.is_dir():
            raise


def _save_rows(*, name: str, source: str, directory: Path, description: str) -> TaskSet:
    tasks = read_tasks(directory)
    digest = hashlib.sha256("".join(task.name + task.digest for task in tasks).encode()).hexdigest()
    with transaction.atomic():
        taskset, created = TaskSet.objects.get_or_create(
            name=name,
            defaults={
                "source": source,
                "digest": digest,
                "directory": str(directory),
                "description": description,
            },
        )
        if created:
            Task.objects.bulk_create([_build_row(taskset, task) for task in tasks], batch_size=500)
    return taskset


def _build_row(taskset: TaskSet, task: HarborTask) -> Task:
    split = Task.Split.HELDOUT if task.split in ("heldout", "test") else Task.Split.TRAIN
    return Task(
        taskset=taskset,
        name=task.name,
        family=task.family,
        split=split,
        directory=str(task.directory),
        instruction=task.instruction,
        digest=task.digest,
        image=task.image,
        agent_timeout_s=task.settings.agent.timeout_sec,
        verifier_timeout_s=task.settings.verifier.timeout_sec,
        settings=task.raw,
    )
