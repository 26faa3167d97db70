"""Images that a registry gives: pulled once with their progress shown, by tag or digest, as a task's image or under a FROM."""

import contextlib
import io
import tarfile
import uuid
from collections.abc import Iterator

import docker.errors
import pytest

from environments.images.errors import ImageUnavailable
from environments.models import Image
from environments.sandboxes.engine_client import client
from tests.environments.images.conftest import MakeTask
from tests.environments.images.registry import Registry, serve
from tests.environments.images.test_images import ensure

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def registry(container_engine: str) -> Iterator[Registry]:
    """Its image has content of its own, so that no earlier test left it here."""
    with serve({"app/pulled.txt": f"from a registry {uuid.uuid4()}\n"}) as found:
        yield found
        for name in (found.name(), f"127.0.0.1:{found.port}/team/tools@{found.digest}"):
            with contextlib.suppress(docker.errors.ImageNotFound):
                client().remove_image(name, force=True)


def read_file(image: str, path: str) -> str:
    container = client().create_container(image, command=["/bin/true"])["Id"]
    try:
        stream, _ = client().get_archive(container, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            entry = archive.extractfile(archive.next())  # type: ignore[arg-type]
            assert entry is not None
            return entry.read().decode()
    finally:
        client().remove_container(container, force=True)


def test_an_image_is_pulled_once_and_its_progress_is_kept(make_task: MakeTask, registry: Registry) -> None:
    task = make_task(image=registry.name())
    image_id = ensure(task)
    assert read_file(image_id, "/app/pulled.txt").startswith("from a registry")
    row = Image.objects.get()
    assert (row.state, row.origin, row.is_pulled) == (Image.State.READY, Image.Origin.NAMED, True)
    assert f"pulling {registry.name()}" in row.log
    assert "Pull complete" in row.log
    asked = len(registry.asked)
    assert ensure(task) == image_id
    assert len(registry.asked) == asked


def test_an_image_that_was_removed_from_the_host_is_pulled_again(make_task: MakeTask, registry: Registry) -> None:
    task = make_task(image=registry.name())
    image_id = ensure(task)
    client().remove_image(registry.name(), force=True)
    assert ensure(task) == image_id


def test_an_image_may_be_named_by_its_digest(make_task: MakeTask, registry: Registry) -> None:
    name = f"127.0.0.1:{registry.port}/team/tools@{registry.digest}"
    assert read_file(ensure(make_task(image=name)), "/app/pulled.txt").startswith("from a registry")


def test_a_dockerfile_starts_from_a_pulled_image(make_task: MakeTask, registry: Registry) -> None:
    task = make_task(f"FROM {registry.name()}\nRUN cat /app/pulled.txt > /app/copied.txt")
    assert read_file(ensure(task), "/app/copied.txt").startswith("from a registry")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("tag", "manifest unknown"), ("password", "(?i)authentication required|no basic auth|unauthorized")],
)
def test_what_a_registry_refuses_is_said_in_its_words(
    make_task: MakeTask, registry: Registry, wrong: str, said: str
) -> None:
    registry.refuse = wrong == "password"
    name = registry.name(tag="2" if wrong == "tag" else "1")
    with pytest.raises(ImageUnavailable, match=said):
        ensure(make_task(image=name))
    assert name in Image.objects.get().error


def test_a_layer_that_is_not_what_the_manifest_says_is_refused(make_task: MakeTask, registry: Registry) -> None:
    _, layer = registry.blobs
    registry.blobs[layer] = registry.blobs[layer][:-1] + b"!"
    with pytest.raises(ImageUnavailable, match="cannot be pulled"):
        ensure(make_task(image=registry.name()))
