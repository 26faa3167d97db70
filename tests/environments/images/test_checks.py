"""`manage.py tasks check` of tasks with images: graded in containers, as their rollouts are."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from environments.models import Sandbox, Task
from environments.sandboxes import engine_client
from environments.tasksets import import_taskset
from environments.tasksets.checks import check_task
from tests.containers import share_data
from tests.environments.images.conftest import LOCAL, UNREACHABLE

pytestmark = [pytest.mark.docker, pytest.mark.sandbox]

DOCKERFILE = f"FROM {LOCAL}\nCOPY given.txt /app/given.txt\nWORKDIR /app\n"
GRADE = "#!/bin/sh\ncd /app\nif [ \"$(cat given.txt made.txt)\" = 'one\ntwo' ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
PROCESS_GRADE = "#!/bin/sh\nif [ -e /work/made.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def taskset(transactional_db, settings, tmp_path: Path, shared_data: Path, local_image: str) -> Path:
    """A set `mixed`: one task with a Dockerfile, one whose files are all it needs, one whose image cannot be had."""
    settings.DATA_DIR = tmp_path / "data"
    settings.IMAGE_BUILD_NETWORK = "none"
    share_data(shared_data, tmp_path / "data")
    root = tmp_path / "mixed"
    write_task(root / "built", grade=GRADE, solve="echo two > made.txt\n")
    (root / "built" / "environment" / "Dockerfile").write_text(DOCKERFILE)
    (root / "built" / "environment" / "given.txt").write_text("one\n")
    write_task(root / "light", grade=PROCESS_GRADE, solve="touch made.txt\n")
    (root / "light" / "environment" / "work").mkdir()
    write_task(root / "lost", grade=GRADE, solve="true\n")
    (root / "lost" / "task.toml").write_text(f'[environment]\ndocker_image = "{UNREACHABLE}"\n')
    import_taskset(name="mixed", directory=root)
    return root


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gyre-c-") as name:
        yield Path(name)


def write_task(directory: Path, *, grade: str, solve: str) -> None:
    for name in ("tests", "environment", "solution"):
        (directory / name).mkdir(parents=True)
    (directory / "task.toml").write_text("")
    (directory / "instruction.md").write_text("Make made.txt.\n")
    (directory / "tests" / "test.sh").write_text(grade)
    (directory / "solution" / "solve.sh").write_text(f"#!/bin/sh\n{solve}")


def check(*words: str) -> dict:
    """The report, whether or not all was well."""
    out = StringIO()
    with contextlib.suppress(CommandError):
        call_command("tasks", "check", *words, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_each_task_is_graded_in_the_kind_of_sandbox_that_its_rollouts_have(taskset: Path) -> None:
    report = check("--all", "--sandbox", "auto")["sets"][0]

    assert report["sandboxes"] == {"": 1, "docker": 1, "process": 1}
    assert (report["solved"], report["unwon"]) == (2, 2)
    (problem,) = report["problems"]
    assert problem.startswith(
        "lost: could not be graded here: The image 127.0.0.1:9/nobody/python:3 is not on this host"
    )
    assert Task.objects.get(name="built").check_result["sandbox"] == "docker"
    assert Task.objects.get(name="lost").checked_at is None  # it says nothing of the task
    assert not Sandbox.objects.filter(stopped_at=None).exists()  # no warm one is left for nobody
    assert engine_client.own_containers() == []
    assert engine_client.own_images() == []


def test_what_the_solution_left_outside_the_work_tree_is_graded_too(taskset: Path) -> None:
    task = Task.objects.get(name="built")
    (Path(task.directory) / "solution" / "solve.sh").write_text("echo two > /var/tmp/made.txt\n")
    (Path(task.directory) / "tests" / "test.sh").write_text(
        "#!/bin/sh\nif [ -s /var/tmp/made.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )

    result = check_task(task)

    assert (result.sandbox, result.solution, result.nothing) == ("docker", 1, 0)


def test_process_sandboxes_asked_for_refuse_a_task_with_an_image_and_say_what_to_do(taskset: Path) -> None:
    report = check("mixed", "--sandbox", "process")

    assert report["sandboxes"] == {"": 2, "process": 1}
    assert (
        "built: needs the image build:built, and process sandboxes have none; say --sandbox auto or docker."
        in (report["problems"])
    )


def test_a_check_that_was_ended_goes_on_where_it_was(taskset: Path) -> None:
    check("mixed", "--sandbox", "auto")
    before = Task.objects.get(name="built").checked_at

    report = check("mixed", "--sandbox", "auto", "--resume")

    assert (report["tasks"], report["graded_now"], report["solved"]) == (3, 1, 2)
    assert Task.objects.get(name="built").checked_at == before


def test_a_solution_has_the_network_that_its_task_names_and_the_log_says_what_it_was_denied(
    taskset: Path, short_directory: Path, settings
) -> None:
    settings.RUNTIME_DIR = short_directory
    task = Task.objects.get(name="built")
    task.settings = {"environment": {"allowed_hosts": ["example.org"]}}
    (Path(task.directory) / "solution" / "solve.sh").write_text(
        "/gyre/python/bin/python3 -c \"import os, urllib.request as u; print(os.environ['http_proxy']); "
        "u.urlopen('http://elsewhere.test/')\"\n"
    )

    result = check_task(task)

    assert "http://127.0.0.1:8101" in result.log
    assert "network: GET elsewhere.test:80 was denied" in result.log
    assert list((short_directory / "egress").iterdir()) == []
