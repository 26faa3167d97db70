"""Tasks whose images are built from a small local image, so that no test asks a registry."""

import http
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import docker.errors
import pytest

from environments.images import base
from environments.models import Task
from environments.sandboxes import engine_client
from environments.tasksets import import_taskset

MakeTask = Callable[..., Task]
LOCAL = "gyre-test-local:1"
"""The small image under a name that tasks can give."""
UNREACHABLE = "127.0.0.1:9/nobody/python:3"
"""A registry that refuses every connection."""


@pytest.fixture
def local_image(small_image: str) -> str:
    """LOCAL is there; returns its id."""
    repository, tag = LOCAL.split(":")
    engine_client.client().tag(small_image, repository, tag)
    return small_image


@pytest.fixture
def make_task(transactional_db, settings, tmp_path: Path, local_image: str) -> MakeTask:
    """make(dockerfile, name=..., image=..., files=...) -> a task with that environment."""
    settings.DATA_DIR = tmp_path / "data"
    settings.IMAGE_BUILD_NETWORK = "none"

    def make(dockerfile: str = "", *, name: str = "one", image: str = "", files: dict[str, str] | None = None) -> Task:
        root = tmp_path / f"source-{name}" / name
        (root / "tests").mkdir(parents=True)
        (root / "environment").mkdir()
        for path, text in (files or {}).items():
            (root / "environment" / path).write_text(text)
        if dockerfile:
            (root / "environment" / "Dockerfile").write_text(dockerfile)
        (root / "task.toml").write_text(f'[environment]\ndocker_image = "{image}"\n' if image else "")
        (root / "instruction.md").write_text("Do it.\n")
        (root / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        taskset = import_taskset(name=f"images-{name}", directory=root.parent)
        return Task.objects.get(taskset=taskset)

    return make


@pytest.fixture(autouse=True)
def leave_no_image(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "small_image" in request.fixturenames:
        api = docker.APIClient(base_url=engine_client.address(), version="auto")
        left = {found["Id"] for found in api.images(name="gyre-task")}
        while left:  # in rounds: an image goes after those that were made from it, in whatever order they are listed
            gone = {image for image in left if is_removed(api, image)}
            assert gone, f"none of {left} can be removed"
            left -= gone


def is_removed(api: docker.APIClient, image: str) -> bool:
    """False where another image was made from it."""
    try:
        api.remove_image(image, force=True)
    except docker.errors.ImageNotFound:
        return True  # went with one that was made from it
    except docker.errors.APIError as error:
        if error.status_code != http.HTTPStatus.CONFLICT:
            raise
        return False
    return True


@pytest.fixture
def quick_base(monkeypatch: pytest.MonkeyPatch, small_image: str) -> list[str]:
    """The base image without debootstrap: the small image under its name. Returns what was made, in order."""
    made: list[str] = []

    def make_base(reference: str, say: Callable[[str], None]) -> str:
        say("standing in for debootstrap")
        made.append(reference)
        repository, tag = reference.split(":")
        engine_client.client().tag(small_image, repository, tag)
        return small_image

    monkeypatch.setattr(base, "make_base", make_base)
    return made
