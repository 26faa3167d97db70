"""An import is all or nothing, says everything that is wrong, and keeps versions."""

import threading
from pathlib import Path

import pytest
from django.db import connection

from environments.models import Rollout, Task, TaskSet
from environments.tasksets import InvalidImport, import_tasks
from tests.environments.tasksets.archive_makers import KINDS, task_files, write_archive

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data(settings, tmp_path) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    return tmp_path / "data"


def problems_of(source: Path) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidImport) as caught:
        import_tasks(source=source, name="mine")
    return [(problem.file, problem.field, problem.rule) for problem in caught.value.problems]


def left_behind(data: Path) -> list[Path]:
    return list((data / "tasksets").iterdir()) if data.is_dir() else []


def write_directory(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("above", ["", "tasks/", "a/b/"])
def test_an_archive_is_imported_wherever_the_tasks_lie_in_it(tmp_path, data, kind, above):
    files = {above + name: content for name, content in {**task_files("one"), **task_files("two")}.items()}
    imported = import_tasks(source=write_archive(tmp_path / f"s.{kind}", files), name="mine")
    assert imported.is_new
    assert [task.name for task in imported.taskset.tasks.all()] == ["one", "two"]
    assert Path(Task.objects.get(name="one").directory, "tests", "test.sh").is_file()
    assert [path.name for path in left_behind(data)] == ["mine"]


def test_a_directory_and_an_archive_with_the_same_contents_are_the_same_set(tmp_path):
    first = import_tasks(source=write_directory(tmp_path / "d", task_files()), name="mine")
    again = import_tasks(source=write_archive(tmp_path / "s.zip", task_files()), name="mine")
    assert (first.is_new, again.is_new) == (True, False)
    assert first.taskset == again.taskset
    assert TaskSet.objects.count() == 1


def test_other_contents_become_the_next_version_and_the_first_stays(tmp_path, data):
    first = import_tasks(source=write_archive(tmp_path / "1.zip", task_files()), name="mine").taskset
    changed = {**task_files(), "one/instruction.md": b"Make another file.\n"}
    second = import_tasks(source=write_archive(tmp_path / "2.zip", changed), name="mine").taskset
    back = import_tasks(source=write_archive(tmp_path / "1.zip", task_files()), name="mine").taskset
    assert (first.name, second.name, back.name) == ("mine", "mine@2", "mine")
    assert (second.base_name, second.version) == ("mine", 2)
    assert first.tasks.get().instruction == "Make a file."
    assert second.tasks.get().instruction == "Make another file."
    assert {path.name for path in left_behind(data)} == {"mine", "mine@2"}


def test_everything_wrong_with_every_task_is_told_by_file_field_and_rule(tmp_path, data):
    files = {**task_files("one"), **task_files("two"), **task_files("bad name!")}
    del files["one/tests/test.sh"]
    files["one/task.toml"] = b"[agent]\ntimeout_sec = 0\n[environment]\nservices = ['db']\n"
    files["two/task.toml"] = b"[agent\n"
    files["two/environment/docker-compose.yaml"] = b"services: {}\n"
    files["two/instruction.md"] = b" "
    assert problems_of(write_archive(tmp_path / "s.zip", files)) == [
        ("bad name!", "", "bad-name"),
        ("one/task.toml", "agent.timeout_sec", "invalid-field"),
        ("one/task.toml", "environment.services", "several-containers"),
        ("one/tests/test.sh", "", "missing-tests"),
        ("two/task.toml", "", "invalid-toml"),
        ("two/instruction.md", "", "missing-instruction"),
        ("two/environment/docker-compose.yaml", "", "compose"),
    ]
    assert left_behind(data) == []
    assert not TaskSet.objects.exists()


def test_a_wicked_archive_leaves_nothing(tmp_path, data):
    files = {**task_files(), "../out.txt": b"x"}
    assert problems_of(write_archive(tmp_path / "s.tar", files)) == [("../out.txt", "", "path-traversal")]
    assert left_behind(data) == []
    assert not (tmp_path / "out.txt").exists()


def test_links_and_special_files_of_a_directory_are_refused(tmp_path):
    import os

    root = write_directory(tmp_path / "d", task_files())
    (root / "one" / "secret").symlink_to("/etc/passwd")
    os.mkfifo(root / "one" / "pipe")
    assert problems_of(root) == [("one/pipe", "", "device"), ("one/secret", "", "link")]


def test_a_single_task_is_a_set_of_one_and_version_control_is_left_out(tmp_path):
    root = write_directory(tmp_path / "d", {name[4:]: content for name, content in task_files().items()})
    write_directory(root, {".git/config": b"x", "__pycache__/a.pyc": b"x"})
    taskset = import_tasks(source=root, name="mine").taskset
    assert taskset.tasks.get().name == "mine"
    assert not Path(taskset.directory, "mine", ".git").exists()


@pytest.mark.parametrize("name", ["", "a b", "../x", "mine@2", "x" * 101])
def test_a_name_that_is_none_is_refused_before_anything_is_read(tmp_path, name):
    with pytest.raises(InvalidImport, match="name"):
        import_tasks(source=tmp_path, name=name)


def test_what_is_not_there_or_holds_no_task_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    assert problems_of(tmp_path / "gone") == [(str(tmp_path / "gone"), "", "missing")]
    assert problems_of(tmp_path / "empty") == [(".", "", "no-task")]


def test_a_directory_that_a_kill_left_is_no_obstacle(tmp_path, data):
    write_directory(data / "tasksets" / "mine", {"half/task.toml": b""})
    taskset = import_tasks(source=write_archive(tmp_path / "s.zip", task_files()), name="mine").taskset
    assert [path.name for path in Path(taskset.directory).iterdir()] == ["one"]


@pytest.mark.django_db(transaction=True)
def test_two_imports_of_the_same_at_once_make_one_set(tmp_path):
    source = write_archive(tmp_path / "s.zip", task_files())
    barrier = threading.Barrier(2)
    results = []

    def work() -> None:
        barrier.wait()
        try:
            results.append(import_tasks(source=source, name="mine").is_new)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]
    assert TaskSet.objects.count() == 1
    assert not Rollout.objects.exists()
