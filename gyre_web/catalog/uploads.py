"""Changes that people make to the catalog, audited."""

from pathlib import Path

from environments.tasksets import Imported, InvalidImport, Problem, import_tasks
from gyre_web.accounts.models import User
from gyre_web.audit.services import record

__all__ = ["import_upload"]


def import_upload(*, path: Path, source_name: str, name: str, description: str, user: User) -> Imported:
    """Import an uploaded archive. Raises InvalidImport; then nothing was written."""
    try:
        imported = import_tasks(source=path, name=name, description=description, source_name=source_name)
    except InvalidImport as error:
        raise InvalidImport([named(problem, path.name, source_name) for problem in error.problems]) from error
    taskset = imported.taskset
    if imported.is_new:
        after = {"name": taskset.name, "tasks": taskset.tasks.count(), "digest": taskset.digest, "from": source_name}
        record(user, "taskset.import", taskset, after=after)
    return imported


def named(problem: Problem, stored_as: str, source_name: str) -> Problem:
    """What is said of the temporary file is said of the file that the person chose."""
    if problem.file != stored_as:
        return problem
    return Problem(
        file=source_name,
        field=problem.field,
        message=problem.message,
        remedy=problem.remedy,
        rule=problem.rule,
    )
