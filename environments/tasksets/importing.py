"""Import tasks of the Harbor layout: one way in for the command line, the browser and REST.

From:  a directory, or an archive (archives.py) that holds task directories, one task, or one directory of tasks.
To:    DATA_DIR/tasksets/<name>/ and its rows (publishing.py).
Holds: everything is checked before anything is public, and everything that is wrong is told at once, by file, field and
       rule; the same contents again give the set that is there, other contents its next version.
Never: follows a link, runs anything, changes a version that exists.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from environments.models import TaskSet
from environments.tasksets.archives import (
    Bounds,
    Entry,
    InvalidArchive,
    Names,
    check_archive,
    check_path,
    unpack_archive,
)
from environments.tasksets.harbor import InvalidTask, Problem, read_task
from environments.tasksets.publishing import publish, tasksets_directory

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,149}")
IGNORED = frozenset({".git", ".hg", "__pycache__", "__MACOSX", ".DS_Store"})
MAX_WRAPPERS = 3
COPY_BYTES = 1 << 20

Say = Callable[[str], None]


class InvalidImport(ValueError):
    """Nothing was imported; `problems` holds all that is wrong."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        number = len(problems)
        super().__init__(
            f"Nothing was imported; {number} problem{'s' if number != 1 else ''}:\n"
            + "\n".join(f"  {problem}" + (f" [{problem.rule}]" if problem.rule else "") for problem in problems)
        )


@dataclass(frozen=True, kw_only=True)
class Imported:
    """is_new: False where a set with these contents was there already."""

    taskset: TaskSet
    is_new: bool


def import_tasks(
    *,
    source: Path,
    name: str,
    description: str = "",
    source_name: str = "",
    bounds: Bounds = Bounds(),  # noqa: B008  immutable
    say: Say = lambda text: None,
) -> Imported:
    """source_name: what the person called it, where `source` is a temporary file. Raises InvalidImport, OSError."""
    check_name(name)
    root = tasksets_directory()
    root.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".import-", dir=root))
    try:
        _fetch(source, aside / "given", bounds, say)
        tasks = find_tasks(aside / "given", single=name)
        say(f"checking {len(tasks)} tasks")
        ready = aside / "set"
        ready.mkdir()
        for task_name, directory in tasks.items():
            directory.rename(ready / task_name)
        check_tasks(ready)
        taskset, is_new = publish(
            base_name=name,
            directory=ready,
            source=f"imported:{source_name or source.name}"[:200],
            description=description,
        )
        return Imported(taskset=taskset, is_new=is_new)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        problem = Problem(
            file="",
            field="name",
            message=f"{name[:40]!r} is no name for a task set.",
            remedy="Use letters, digits, - and _, at most 100; versions are added by themselves.",
            rule="bad-name",
        )
        raise InvalidImport([problem])


def _fetch(source: Path, given: Path, bounds: Bounds, say: Say) -> None:
    """Copy or unpack the source after it was looked at as a whole. Raises InvalidImport."""
    try:
        if source.is_dir():
            say("looking at every file")
            check_directory(source, bounds)
            copy_directory(source, given)
        elif source.is_file():
            say("looking at every entry")
            check_archive(source, bounds)
            given.mkdir()
            unpack_archive(source, given, bounds)
        else:
            raise InvalidImport([Problem(file=str(source), message="is not there.", rule="missing")])
    except InvalidArchive as error:
        raise InvalidImport(error.problems) from error


# Directories.


def check_directory(source: Path, bounds: Bounds) -> None:
    """Raises InvalidArchive as for an archive with the same entries."""
    problems: list[Problem] = []
    names = Names(problems)
    total = number = 0
    for path, found in _walk(source):
        number += 1
        entry = Entry(path=path.relative_to(source).as_posix(), kind=_kind(found.st_mode))
        problems += check_path(entry)
        names.add(entry)
        if entry.kind == "file":
            total += found.st_size
            if found.st_size > bounds.file_bytes:
                problems.append(Problem(file=entry.path, message="is too large.", rule="too-large"))
    if total > bounds.total_bytes:
        problems.append(Problem(file=str(source), message="holds too many bytes in all.", rule="too-large"))
    if number > bounds.entries:
        problems.append(Problem(file=str(source), message="holds too many files.", rule="too-many-entries"))
    if problems:
        raise InvalidArchive(problems)


def _walk(source: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for directory, subdirectories, files in os.walk(source, followlinks=False):
        subdirectories[:] = sorted(name for name in subdirectories if name not in IGNORED)
        for name in [*subdirectories, *sorted(files)]:
            if name not in IGNORED:
                path = Path(directory) / name
                yield path, path.lstat()


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "link"
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else "device"


def copy_directory(source: Path, given: Path) -> None:
    given.mkdir()
    for path, found in _walk(source):
        target = given / path.relative_to(source)
        if stat.S_ISDIR(found.st_mode):
            target.mkdir()
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as original, target.open("xb") as copy:
            shutil.copyfileobj(original, copy, COPY_BYTES)
        target.chmod(0o755 if found.st_mode & 0o100 else 0o644)


# Tasks.


def find_tasks(given: Path, *, single: str) -> dict[str, Path]:
    """Task directories by name. single: the name of a task that lies at the top by itself. Raises InvalidImport."""
    root = given
    for _ in range(MAX_WRAPPERS):
        if _is_task(root):
            return {root.name if root != given else single: root}
        inside = _subdirectories(root)
        if len(inside) != 1 or _is_task(inside[0]) or not _subdirectories(inside[0]):
            break
        root = inside[0]
    tasks = _subdirectories(root)
    if not tasks:
        remedy = "A task is a directory with task.toml, instruction.md, environment/ and tests/."
        problem = Problem(file=".", message="holds no task directory.", remedy=remedy, rule="no-task")
        raise InvalidImport([problem])
    return {path.name: path for path in tasks}


def _is_task(directory: Path) -> bool:
    """Or was meant to be one: what is missing is then said of it."""
    return any((directory / name).exists() for name in ("task.toml", "instruction.md", "tests/test.sh"))


def _subdirectories(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in IGNORED
    )


def check_tasks(directory: Path) -> None:
    """Raises InvalidImport with every problem of every task."""
    problems: list[Problem] = []
    for path in sorted(directory.iterdir()):
        if not TASK_NAME.fullmatch(path.name):
            remedy = "Use letters, digits, -, _ and . for its directory."
            problems.append(Problem(file=path.name, message="is no name for a task.", remedy=remedy, rule="bad-name"))
        try:
            read_task(path)
        except InvalidTask as error:
            problems += [_of_task(path.name, problem) for problem in error.problems]
    if problems:
        raise InvalidImport(problems)


def _of_task(task: str, problem: Problem) -> Problem:
    return Problem(
        file=f"{task}/{problem.file}",
        field=problem.field,
        message=problem.message,
        remedy=problem.remedy,
        rule=problem.rule,
    )
