"""The built-in set: the same from a seed, no task twice, and rows in one go."""

import json
from pathlib import Path

import pytest

from environments.models import Task, TaskSet
from environments.scripted.experts import expert_turn, split_commands
from environments.tasksets import InvalidImport, ensure_builtin_taskset, import_taskset
from environments.tasksets.harbor import digest_directory
from environments.tasksets.shell_and_python import FAMILIES, build_tasks, write_task

pytestmark = pytest.mark.slow


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for side in ("a", "b"):
        for task in build_tasks(seed=7, num_train=24, num_heldout=12):
            write_task(task, tmp_path / side / task.name)
    assert digest_directory(tmp_path / "a") == digest_directory(tmp_path / "b")


def test_another_seed_gives_other_tasks():
    first = {task.draft.instruction for task in build_tasks(seed=1, num_train=60, num_heldout=0)}
    second = {task.draft.instruction for task in build_tasks(seed=2, num_train=60, num_heldout=0)}
    assert len(first & second) < 10


def test_no_held_out_task_has_the_instruction_and_files_of_another():
    tasks = list(build_tasks(seed=1, num_train=600, num_heldout=240))
    keys = {json.dumps([task.draft.instruction, task.draft.files], sort_keys=True) for task in tasks}
    assert len(keys) == 840


def test_both_splits_hold_all_twelve_families_evenly():
    tasks = list(build_tasks(seed=1, num_train=600, num_heldout=240))
    for split, number in (("train", 50), ("heldout", 20)):
        counts = dict.fromkeys(FAMILIES, 0)
        for task in tasks:
            counts[task.family] += task.split == split
        assert set(counts.values()) == {number}
    assert len(FAMILIES) >= 12


def test_a_set_larger_than_the_families_can_give_is_refused(monkeypatch):
    monkeypatch.setattr("environments.tasksets.shell_and_python.FAMILIES", {"create": FAMILIES["create"]})
    monkeypatch.setattr("environments.tasksets.families.STEMS", ["notes"])
    monkeypatch.setattr("environments.tasksets.families.WORDS", ["red"])
    with pytest.raises(ValueError, match="create"):
        list(build_tasks(seed=1, num_train=2000, num_heldout=0))


@pytest.mark.django_db
def test_the_built_in_set_is_added_once_with_all_its_rows(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    taskset = ensure_builtin_taskset()
    assert ensure_builtin_taskset() == taskset
    assert TaskSet.objects.count() == 1
    assert Task.objects.filter(split="train").count() == 600
    assert Task.objects.filter(split="heldout").count() == 240
    assert len(list((tmp_path / "tasksets").iterdir())) == 1


@pytest.mark.django_db
def test_the_built_in_set_comes_back_when_its_directory_was_deleted(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    taskset = ensure_builtin_taskset()
    Path(taskset.directory).rename(tmp_path / "gone")
    ensure_builtin_taskset()
    task = Task.objects.first()
    assert task is not None
    assert Path(task.directory, "instruction.md").is_file()


@pytest.mark.django_db
def test_an_import_names_every_wrong_task_and_writes_nothing(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    for task in build_tasks(seed=1, num_train=3, num_heldout=0):
        write_task(task, tmp_path / "mine" / task.name)
    (tmp_path / "mine" / "copy-0002" / "instruction.md").unlink()
    (tmp_path / "mine" / "create-0000" / "tests" / "test.sh").unlink()
    with pytest.raises(InvalidImport) as caught:
        import_taskset(name="mine", directory=tmp_path / "mine")
    assert [problem.file for problem in caught.value.problems] == [
        "copy-0002/instruction.md",
        "create-0000/tests/test.sh",
    ]
    assert not TaskSet.objects.exists()
    assert list((tmp_path / "data" / "tasksets").iterdir()) == []


@pytest.mark.django_db
def test_an_import_copies_the_tasks(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    for task in build_tasks(seed=1, num_train=3, num_heldout=0):
        write_task(task, tmp_path / "mine" / task.name)
    taskset = import_taskset(name="mine", directory=tmp_path / "mine")
    assert [task.name for task in taskset.tasks.all()] == ["append-0001", "copy-0002", "create-0000"]
    assert taskset.source == "imported:mine"
    assert Path(taskset.directory).is_relative_to(tmp_path / "data")


def test_an_expert_plays_the_solution_and_then_submits(tmp_path):
    task = next(task for task in build_tasks(seed=1, num_train=60, num_heldout=0) if len(task.draft.solution) == 2)
    write_task(task, tmp_path / task.name)
    turns = [expert_turn(tmp_path / task.name, "mini-swe-agent", turn) for turn in range(4)]
    assert turns[0] == f"```bash\n{task.draft.solution[0]}\n```"
    assert turns[1] == f"```bash\n{task.draft.solution[1]}\n```"
    assert turns[2] == turns[3] == "```bash\nsubmit\n```"


def test_a_solution_is_split_into_its_commands():
    script = "#!/bin/sh\nset -e\n# why\necho a \\\n  b\n\n  ls -l  \n"
    assert split_commands(script) == ["echo a \\\n  b", "ls -l"]
