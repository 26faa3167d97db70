"""A container engine for tests that need one, and small images made from programs of this machine.

An engine that answers (DOCKER_HOST, or the usual socket) is used as it is. Else `dockerd` is started, where we are root
and it is installed, with data and socket of its own in a short temporary directory, and ended with the session.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre_web.bench._small_image import import_image
from gyre_web.up.engine import OwnEngine, answers, why_no_engine

__all__ = ["container_engine", "image_with_work", "share_data", "shared_data", "small_image", "why_no_engine"]

SHARED = ("bundles", "image-facts")


@pytest.fixture(scope="session")
def container_engine() -> Iterator[str]:
    """Address of an engine that answers."""
    if answers():
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        return
    reason = why_no_engine()
    if reason:
        pytest.skip(f"NOT CHECKED HERE (docker): {reason}")
    own = OwnEngine()
    try:
        yield own.start()
    finally:
        own.stop()


@pytest.fixture(scope="session")
def small_image(container_engine: str) -> str:
    """Id of an image with a shell and the usual tools, without Python, without a working directory."""
    return import_image("1")


@pytest.fixture(scope="session")
def image_with_work(container_engine: str) -> str:
    """Id of an image that works in /app, on files that root owns, with a PATH and a variable of its own."""
    files = {"app/main.txt": "from the image\n", "app/inner/deep.txt": "deep\n"}
    environment = ["ENV PATH=/opt/tools:/usr/bin:/bin", "ENV COLOUR=blue"]
    return import_image("2", files, ["WORKDIR /app", *environment])


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What takes a while to make and never changes: our Python for containers, what is known of images."""
    directory = tmp_path_factory.mktemp("data")
    for path in (directory, *list(directory.parents)[:2]):
        path.chmod(0o755)
    for name in SHARED:
        (directory / name).mkdir()
    return directory


def share_data(shared: Path, data: Path) -> None:
    """Let a test's own data directory have it too."""
    data.mkdir(exist_ok=True)
    for name in SHARED:
        (data / name).symlink_to(shared / name)
