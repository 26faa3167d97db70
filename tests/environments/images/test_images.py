"""A task's image is here when a rollout wants it: built or found once, or refused in words that help."""

import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from environments.images.ensure import RETRY_S, ensure_image, rebuild, want_image
from environments.images.errors import ImageUnavailable
from environments.models import Image, Task
from environments.sandboxes.engine_client import client
from tests.environments.images.conftest import LOCAL, UNREACHABLE, MakeTask
from tests.environments.sandboxes.waiting import processes_with, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def ensure(task: Task) -> str:
    return ensure_image(want_image(task), stop=threading.Event())


def test_a_dockerfile_is_built_with_its_context_and_its_log_is_kept(make_task: MakeTask) -> None:
    task = make_task(
        "FROM gyre-test-local:1\nCOPY note.txt /note.txt\nRUN cat /note.txt", files={"note.txt": "hello\n"}
    )
    image_id = ensure(task)
    row = Image.objects.get()
    assert (row.state, row.origin, row.image_id) == (Image.State.READY, Image.Origin.BUILT, image_id)
    assert (row.size_bytes or 0) > 1000
    assert "Step 3/3 : RUN cat /note.txt" in row.log
    assert "\nhello\n" in row.log
    assert row.log.splitlines()[-1].startswith("ready after")


def test_the_same_contents_are_one_image_and_other_contents_another(make_task: MakeTask) -> None:
    dockerfile = "FROM gyre-test-local:1\nCOPY note.txt /note.txt"
    first, same, other = (
        make_task(dockerfile, name=name, files={"note.txt": text})
        for name, text in (("first", "a\n"), ("same", "a\n"), ("other", "b\n"))
    )
    assert ensure(first) == ensure(same) != ensure(other)
    assert Image.objects.count() == 2


def test_many_who_want_one_image_at_once_build_it_once(make_task: MakeTask) -> None:
    task = make_task("FROM gyre-test-local:1\nRUN sleep 0.3; echo built >&2")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(ensure(task))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert Image.objects.get().log.count("Step 1/2") == 1


def test_a_failing_step_is_named_with_the_whole_log_and_not_tried_by_everybody(make_task: MakeTask) -> None:
    task = make_task("FROM gyre-test-local:1\nRUN echo before; exit 7\nRUN true")
    with pytest.raises(ImageUnavailable, match=r"non-zero code: 7.*Step 2/3.*build again"):
        ensure(task)
    row = Image.objects.get()
    assert row.state == Image.State.FAILED
    assert "before" in row.log
    started_at = row.started_at
    with pytest.raises(ImageUnavailable, match="non-zero code: 7"):
        ensure(task)
    row.refresh_from_db()
    assert row.started_at == started_at
    Image.objects.update(built_at=timezone.now() - timedelta(seconds=RETRY_S + 1))
    with pytest.raises(ImageUnavailable):
        ensure(task)
    row.refresh_from_db()
    assert row.started_at != started_at


def test_a_build_that_takes_too_long_is_ended_and_the_error_names_the_field_and_the_step(make_task: MakeTask) -> None:
    task = make_task("FROM gyre-test-local:1\nRUN echo begun; sleep 600.125\nRUN true")
    task.settings = {"environment": {"build_timeout_sec": 1.5}}
    pattern = r"environment\.build_timeout_sec = 1\.5 s \(task\.toml\).*at Step 2/3 : RUN echo begun; sleep.*Raise"
    with pytest.raises(ImageUnavailable, match=pattern):
        ensure(task)
    assert "begun" in Image.objects.get().log
    wait_for(lambda: not processes_with("600.125"))  # the engine ended the step, too
    wait_for(lambda: client().containers(all=True) == [])


def test_a_more_patient_task_with_the_same_context_tries_again_at_once(make_task: MakeTask) -> None:
    dockerfile = "FROM gyre-test-local:1\nRUN sleep 2.5"
    hasty, patient = make_task(dockerfile, name="hasty"), make_task(dockerfile, name="patient")
    hasty.settings = {"environment": {"build_timeout_sec": 0.5}}
    with pytest.raises(ImageUnavailable, match=r"build_timeout_sec = 0\.5 s"):
        ensure(hasty)
    assert ensure(patient) == ensure(hasty)
    assert Image.objects.get().build_timeout_s == 600.0


def test_an_image_that_the_engine_lost_is_built_again(make_task: MakeTask) -> None:
    task = make_task("FROM gyre-test-local:1\nRUN echo $$ > /once")
    client().remove_image(ensure(task), force=True)
    assert client().inspect_image(ensure(task))["Id"]


def test_a_builder_that_died_is_followed_by_another(make_task: MakeTask) -> None:
    task = make_task("FROM gyre-test-local:1\nRUN true")
    row = want_image(task)
    past = timezone.now() - timedelta(seconds=1)
    Image.objects.update(state=Image.State.BUILDING, lease_owner="somebody", lease_expires_at=past, started_at=past)
    assert ensure_image(row, stop=threading.Event())


def test_rebuilding_is_refused_while_it_is_being_made(make_task: MakeTask) -> None:
    task = make_task("FROM gyre-test-local:1\nRUN true")
    ensure(task)
    row = Image.objects.get()
    Image.objects.update(lease_expires_at=timezone.now() + timedelta(seconds=30))
    assert not rebuild(row)
    Image.objects.update(lease_expires_at=None)
    assert rebuild(row)
    assert Image.objects.get().state == Image.State.WANTED


def test_an_image_given_by_name_is_found_where_it_is_here(make_task: MakeTask, local_image: str) -> None:
    assert ensure(make_task(image=LOCAL)) == local_image
    assert Image.objects.get().origin == Image.Origin.NAMED


def test_a_name_that_no_registry_gives_is_refused_with_what_can_be_done(make_task: MakeTask) -> None:
    with pytest.raises(ImageUnavailable, match=rf"{UNREACHABLE} is not on this host and cannot be pulled.*docker load"):
        ensure(make_task(image=UNREACHABLE))
    assert Image.objects.get().state == Image.State.FAILED


def test_a_stand_in_is_off_by_default_and_loud_when_allowed(
    make_task: MakeTask, quick_base: list[str], settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.images.build.pull", refuse)
    task = make_task("FROM python:3.12-slim\nRUN echo built")
    with pytest.raises(ImageUnavailable, match=r"python:3.12-slim.*GYRE_IMAGE_STAND_INS=python"):
        ensure(task)
    settings.IMAGE_STAND_INS = ["python"]
    ensure(task)
    row = Image.objects.get(state=Image.State.READY, origin=Image.Origin.BUILT)
    assert row.stand_ins == {"python:3.12-slim": quick_base[0]}
    assert "*** STAND-IN: python:3.12-slim" in row.log


def test_the_base_image_can_be_asked_for_by_name_and_is_made_once(make_task: MakeTask, quick_base: list[str]) -> None:
    ensure(make_task(image="gyre-base", name="named"))
    ensure(make_task("FROM gyre-base\nRUN true", name="built"))
    assert len(quick_base) == 1
    assert not Image.objects.get(origin=Image.Origin.BUILT).stand_ins


def refuse(name: str, say: object) -> str:
    from environments.images.build import _cannot_pull

    raise ImageUnavailable(_cannot_pull(name, "no registry"))
