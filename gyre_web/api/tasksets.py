"""REST of the catalog: task sets, tasks, imports and trials, by the same services as the pages."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.files.uploadedfile import TemporaryUploadedFile
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, File, Form, Router, Schema, Status
from ninja.files import UploadedFile

from environments.models import Harness, Task, TaskSet
from environments.tasksets import InvalidImport
from gyre_web.accounts.models import User
from gyre_web.api.auth import access
from gyre_web.catalog import selectors, trials
from gyre_web.catalog.uploads import import_upload

router = Router(tags=["tasks"])
PAGE = 100


class TaskSetOut(Schema):
    name: str
    base_name: str
    version: int
    description: str
    source: str
    digest: str
    created_at: datetime
    num_tasks: int
    num_heldout: int
    num_checked: int
    num_wrong: int
    checked_at: datetime | None


class TaskOut(Schema):
    id: UUID
    name: str
    family: str
    split: str
    instruction: str
    digest: str
    image: str
    checked_at: datetime | None
    check_result: dict[str, Any]


class TaskPage(Schema):
    items: list[TaskOut]
    total: int
    page: int


class ImportOut(Schema):
    name: str
    version: int
    digest: str
    tasks: int
    is_new: bool = Field(description="False: these contents were there already.")


class ProblemOut(Schema):
    file: str
    field: str
    message: str
    remedy: str
    rule: str


class ImportProblems(Schema):
    """Nothing was imported; every problem is listed."""

    detail: str
    problems: list[ProblemOut]


class TrialIn(Schema):
    harness: str
    place: str = Field(description="`expert`, or the pool of an engine that serves.")


class TrialOut(Schema):
    rollout: UUID


class Refusal(Schema):
    detail: str
    field: str
    places: list[str] = Field(description="What can be asked for now.")


@router.get("/tasksets", response=list[TaskSetOut])
def get_tasksets(request: HttpRequest) -> Any:
    """Every version of every task set, with how its solution check went."""
    access(request, User.Role.VIEWER)
    return selectors.list_tasksets()


@router.post("/tasksets", response={200: ImportOut, 201: ImportOut, 422: ImportProblems})
def post_taskset(
    request: HttpRequest, archive: File[UploadedFile], name: Form[str], description: Form[str] = ""
) -> Status:
    """Import an archive of Harbor tasks (zip, tar, tar.gz, tar.zst). The same contents again answer 200."""
    caller = access(request, User.Role.OPERATOR)
    try:
        with stored(archive) as path:
            imported = import_upload(
                path=path, source_name=archive.name or "archive", name=name, description=description, user=caller.user
            )
    except InvalidImport as error:
        problems = [vars(problem) for problem in error.problems]
        return Status(422, {"detail": f"{len(problems)} problems; nothing was imported.", "problems": problems})
    taskset = imported.taskset
    facts = {"name": taskset.name, "version": taskset.version, "digest": taskset.digest}
    facts |= {"tasks": taskset.tasks.count(), "is_new": imported.is_new}
    return Status(201 if imported.is_new else 200, facts)


@router.get("/tasksets/{name}/tasks", response=TaskPage)
def get_tasks(request: HttpRequest, name: str, q: str = "", page: int = 1) -> dict[str, Any]:
    """Tasks of one set, 100 a page, by name."""
    access(request, User.Role.VIEWER)
    taskset = get_object_or_404(TaskSet, name=name)
    found = selectors.list_tasks({"taskset": taskset.name, "q": q})
    page = min(max(1, page), 1_000_000)
    start = (page - 1) * PAGE
    return {"items": list(found[start : start + PAGE]), "total": found.count(), "page": page}


@router.post("/tasks/{uuid:task_id}/try", response={201: TrialOut, 409: Refusal})
def post_trial(request: HttpRequest, task_id: UUID, body: TrialIn) -> Status:
    """Start one rollout of this task outside of any run."""
    caller = access(request, User.Role.OPERATOR)
    task = get_object_or_404(Task, pk=task_id)
    harness = get_object_or_404(Harness, name=body.harness)
    try:
        rollout = trials.start_trial(task=task, harness=harness, place=body.place, user=caller.user)
    except trials.TrialRefused as error:
        places = [place.key for place in trials.list_places(task)]
        return Status(409, {"detail": str(error), "field": error.field, "places": places})
    return Status(201, {"rollout": rollout.pk})


@contextmanager
def stored(upload: UploadedFile) -> Iterator[Path]:
    """The upload as a file; a small one may still be in memory."""
    if isinstance(upload, TemporaryUploadedFile):
        yield Path(upload.temporary_file_path())
        return
    with tempfile.NamedTemporaryFile(prefix="gyre-upload-") as file:
        for piece in upload.chunks():
            file.write(piece)
        file.flush()
        yield Path(file.name)
