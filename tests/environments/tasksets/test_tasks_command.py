"""`manage.py tasks`: generate, import, check."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from environments.models import Sandbox, Task
from environments.tasksets.checks import check_task
from tests.environments.tasksets.archive_makers import task_files, write_archive

pytestmark = pytest.mark.slow


@pytest.fixture
def data(settings, tmp_path, transactional_db):
    tmp_path.chmod(0o755)
    settings.DATA_DIR = tmp_path / "data"
    return tmp_path


def run(*words: str) -> str:
    out = StringIO()
    call_command("tasks", *words, stdout=out)
    return out.getvalue()


@pytest.mark.sandbox
def test_every_family_is_won_by_its_solution_and_not_by_doing_nothing(data):
    run("generate", "small", "--train", "24", "--heldout", "0")
    report = json.loads(run("check", "small", "--json"))
    assert (report["set"], report["tasks"], report["problems"], report["ok"]) == ("small", 24, [], True)
    assert (report["solved"], report["unwon"]) == (24, 24)
    assert {task.check_result["solution"] for task in Task.objects.exclude(checked_at=None)} == {1.0}
    assert not Sandbox.objects.filter(stopped_at=None).exists()


@pytest.mark.sandbox
def test_a_task_that_doing_nothing_wins_and_one_that_cannot_be_won_are_named(data):
    run("generate", "small", "--train", "3", "--heldout", "0")
    root = data / "data" / "tasksets" / "small"
    (root / "append-0001" / "tests" / "test.sh").write_text(
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    )
    (root / "copy-0002" / "solution" / "solve.sh").write_text("true\n")
    with pytest.raises(CommandError, match="2 problems"):
        run("check", "small")
    append, copy, create = Task.objects.order_by("name")
    assert check_task(append).problems == ("doing nothing earns reward 1.",)
    assert check_task(copy).problems == ("the solution earns reward 0.",)
    assert [task.check_result["problems"] == [] for task in (append, copy, create)] == [False, False, True]


def test_an_import_says_what_is_wrong(data):
    (data / "mine" / "one").mkdir(parents=True)
    with pytest.raises(CommandError, match=r"one/task\.toml: is missing"):
        run("import", str(data / "mine"), "--name", "mine")


def test_an_import_takes_its_name_from_the_path_and_says_when_nothing_is_new(data):
    archive = write_archive(data / "mine.tar.gz", task_files())
    assert "mine: 1 tasks in" in run("import", str(archive))
    assert "nothing was changed" in run("import", str(archive))
    assert json.loads(run("import", str(archive), "--json"))["is_new"] is False


def test_what_to_check_is_one_set_or_all(data):
    with pytest.raises(CommandError, match="--all"):
        run("check")
    with pytest.raises(CommandError, match="known: none yet"):
        run("check", "--all")


@pytest.mark.sandbox
def test_all_sets_are_checked_in_one_table(data):
    run("generate", "first", "--train", "2", "--heldout", "0")
    run("import", str(write_archive(data / "second.zip", task_files())))
    with pytest.raises(CommandError, match="problems in second"):
        run("check", "--all")
    report = Task.objects.get(taskset__name="second").check_result
    assert report["problems"] == [
        "doing nothing earns reward 1.",
        "has no solution/solve.sh; whether it can be won is not known.",
    ]


def test_an_unknown_set_is_named_with_the_known_ones(data):
    run("generate", "small", "--train", "1", "--heldout", "0")
    with pytest.raises(CommandError, match="known: small"):
        run("check", "other")


@pytest.mark.sandbox
def test_an_unknown_package_is_named_with_the_known_ones(data):
    with pytest.raises(CommandError, match="there are: aniso8601"):
        run("generate", "python-bugs", "--package", "nothing")
