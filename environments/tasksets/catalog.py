"""Turn directories of tasks into rows: the built-in sets, and directories by name.

From:  `manage.py tasks`, `manage.py up` (built-in set).
To:    environments.tasksets.publishing.
Holds: a set's directory is complete before its row exists; doing it twice is harmless.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from environments.models import TaskSet
from environments.sandboxes import Sandboxes
from environments.tasksets import python_bugs, shell_and_python
from environments.tasksets.importing import Say, import_tasks
from environments.tasksets.publishing import publish, tasksets_directory

BUILTIN_NAME = "shell-and-python"
BUILTIN_SEED = 1


def ensure_builtin_taskset() -> TaskSet:
    """The row of the built-in set; its tasks are generated, checked and added if they are not there yet."""
    found = TaskSet.objects.filter(name=BUILTIN_NAME).first()
    if found and Path(found.directory).is_dir():
        return found
    return generate_taskset(name=BUILTIN_NAME, seed=BUILTIN_SEED)


def generate_taskset(*, name: str, seed: int, num_train: int = 600, num_heldout: int = 240) -> TaskSet:
    """Write the generated set to the data directory and add its rows. The same seed gives the same bytes."""
    aside = _make_aside(name)
    try:
        for task in shell_and_python.build_tasks(seed=seed, num_train=num_train, num_heldout=num_heldout):
            shell_and_python.write_task(task, aside / "set" / task.name)
        description = f"Small shell and Python tasks of {len(shell_and_python.FAMILIES)} families (seed {seed})."
        source = f"generated:{shell_and_python.NAME}"
        return publish(base_name=name, directory=aside / "set", source=source, description=description)[0]
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def generate_python_bugs(
    *,
    name: str,
    seed: int,
    per_package: int,
    packages: Sequence[str],
    jobs: int,
    sandboxes: Sandboxes,
    say: Say = lambda text: None,
) -> TaskSet:
    """Real packages with one small mistake each. Raises GenerationError, SourceError; then nothing was published."""
    aside = _make_aside(name)
    try:
        python_bugs.make_tasks(
            aside / "set",
            sandboxes=sandboxes,
            cache=tasksets_directory().parent / "cache" / python_bugs.NAME,
            seed=seed,
            per_package=per_package,
            packages=packages,
            jobs=jobs,
            say=say,
        )
        description = (
            f"One mistake in one function of a real Python package, to be found from failing tests (seed {seed})."
        )
        source = f"generated:{python_bugs.NAME}"
        return publish(base_name=name, directory=aside / "set", source=source, description=description)[0]
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_aside(name: str) -> Path:
    root = tasksets_directory()
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))


def import_taskset(*, name: str, directory: Path, description: str = "") -> TaskSet:
    """Copy a directory of Harbor task directories into the data directory and add its rows. Raises InvalidImport."""
    return import_tasks(source=directory, name=name, description=description).taskset
