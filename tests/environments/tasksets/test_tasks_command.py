"""`manage.py tasks`: generate, import, check."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from environments.models import Sandbox, Task
from environments.sandboxes import get_sandboxes
from environments.tasksets.checks import check_task


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
    assert json.loads(run("check", "small", "--json")) == {"set": "small", "tasks": 24, "problems": []}
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
    sandboxes = get_sandboxes("process")
    append, copy, _ = Task.objects.order_by("name")
    assert check_task(append, sandboxes) == ["append-0001: doing nothing earns reward 1."]
    assert check_task(copy, sandboxes) == ["copy-0002: the solution earns reward 0."]


def test_an_import_says_what_is_wrong(data):
    (data / "mine" / "one").mkdir(parents=True)
    with pytest.raises(CommandError, match=r"task\.toml: is missing"):
        run("import", "mine", str(data / "mine"))


def test_an_unknown_set_is_named_with_the_known_ones(data):
    run("generate", "small", "--train", "1", "--heldout", "0")
    with pytest.raises(CommandError, match="known: small"):
        run("check", "other")
