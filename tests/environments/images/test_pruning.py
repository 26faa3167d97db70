"""`manage.py images prune`: what nobody wants is offered and removed; what is in use, or not ours, never."""

import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path

import docker.errors
import pytest
from django.core.management import call_command
from django.utils import timezone

from environments.images.ensure import ensure_image, want_image
from environments.images.pruning import find_stale, remove
from environments.models import Image, Task
from environments.sandboxes.engine_client import client
from tests.environments.images.conftest import LOCAL, MakeTask

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.sandbox, pytest.mark.django_db(transaction=True)]

MONTH = timedelta(days=30)
LONG_AGO = timedelta(days=40)

Build = Callable[..., str]


@pytest.fixture
def build(make_task: MakeTask) -> Build:
    """build(name, age=...) -> id of a task image that was last wanted so long ago."""

    def make(name: str = "one", *, age: timedelta = LONG_AGO) -> str:
        task = make_task(f"FROM {LOCAL}\nRUN echo {name} > /name", name=name)
        image = ensure_image(want_image(task), stop=threading.Event())
        Image.objects.filter(image_id=image).update(last_used_at=timezone.now() - age)
        return image

    return make


def is_there(image: str) -> bool:
    try:
        return bool(client().inspect_image(image))
    except docker.errors.ImageNotFound:
        return False


def prune(*words: str) -> dict:
    out = StringIO()
    call_command("images", "prune", "--json", *words, stdout=out)
    return json.loads(out.getvalue())


def test_an_image_that_nobody_wanted_is_shown_and_removed_only_when_told_to(build: Build) -> None:
    old, young = build("old"), build("young", age=timedelta(days=2))

    shown = prune()
    assert [(row["kind"], row["removed"]) for row in shown["stale"]] == [("image", False)]
    assert shown["stale"][0]["size_bytes"] > 1000
    assert is_there(old)

    done = prune("--yes")
    assert [row["removed"] for row in done["stale"]] == [True]
    assert not is_there(old)
    assert is_there(young)
    assert Image.objects.get().image_id == young
    assert prune("--yes")["stale"] == []


def test_an_image_that_a_container_was_made_from_is_never_offered(build: Build) -> None:
    image = build()
    container = client().create_container(image, command=["none"])["Id"]
    try:
        assert find_stale(MONTH) == []
    finally:
        client().remove_container(container)
    assert [stale.kind for stale in find_stale(MONTH)] == ["image"]


def test_the_image_below_one_that_is_in_use_stays(build: Build) -> None:
    image = build()
    kept = client().commit(client().create_container(image, command=["none"])["Id"], repository="gyre-task", tag="kept")
    for container in client().containers(all=True):
        client().remove_container(container["Id"])
    child = client().create_container(kept["Id"], command=["none"])["Id"]
    try:
        assert find_stale(MONTH) == []
    finally:
        client().remove_container(child)


def test_an_image_that_is_wanted_between_the_look_and_the_removal_stays(build: Build, make_task: MakeTask) -> None:
    image = build()
    (stale,) = find_stale(MONTH)
    want_image(Task.objects.get())
    assert remove(stale) == "wanted meanwhile"
    assert is_there(image)


def test_what_was_wanted_within_the_hour_stays_whatever_is_asked(build: Build) -> None:
    build(age=timedelta(minutes=50))
    assert prune("--yes", "--days", "0")["stale"] == []


def test_an_image_that_was_here_before_gyre_is_not_ours_to_remove(make_task: MakeTask, local_image: str) -> None:
    want_image(make_task(image=LOCAL))
    Image.objects.update(state="ready", image_id=local_image, last_used_at=timezone.now() - LONG_AGO)
    assert find_stale(MONTH) == []
    Image.objects.update(is_pulled=True)
    assert [stale.name for stale in find_stale(MONTH)] == [LOCAL]


def test_records_and_facts_of_images_that_are_gone_go(build: Build, settings) -> None:
    client().remove_image(build(), force=True)
    facts = Path(settings.DATA_DIR) / "image-facts" / ("0" * 32)
    facts.mkdir(parents=True)
    old = (timezone.now() - LONG_AGO).timestamp()
    os.utime(facts, (old, old))

    assert sorted(row["kind"] for row in prune("--yes")["stale"]) == ["facts", "record"]
    assert not Image.objects.exists()
    assert not facts.exists()
