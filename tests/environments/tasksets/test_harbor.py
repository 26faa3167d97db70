"""A Harbor directory is read, or everything that is wrong with it is said at once."""

from pathlib import Path

import pytest

from environments.tasksets.harbor import InvalidTask, digest_directory, read_task, start_tree


def make_task(root: Path, name: str = "one", toml: str = "", *, work: bool = True) -> Path:
    task = root / name
    (task / "tests").mkdir(parents=True)
    (task / "environment" / "work").mkdir(parents=True) if work else (task / "environment").mkdir()
    (task / "task.toml").write_text(toml)
    (task / "instruction.md").write_text("Make a file.\n")
    (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return task


def problems_of(task: Path) -> set[tuple[str, str]]:
    with pytest.raises(InvalidTask) as caught:
        read_task(task)
    return {(problem.file, problem.field) for problem in caught.value.problems}


def test_a_whole_task_is_read_with_its_timeouts_and_kept_unknown_fields(tmp_path):
    toml = '[agent]\ntimeout_sec = 12\n[verifier]\ntimeout_sec = 5.5\n[metadata]\nfamily = "copy"\n[own]\nx = 1\n'
    task = read_task(make_task(tmp_path, toml=toml))
    assert (task.settings.agent.timeout_sec, task.settings.verifier.timeout_sec) == (12.0, 5.5)
    assert (task.family, task.split, task.instruction, task.image) == ("copy", "train", "Make a file.", "")
    assert task.raw["own"] == {"x": 1}


def test_everything_wrong_is_named_at_once(tmp_path):
    task = make_task(tmp_path, toml="[agent]\ntimeout_sec = -1\n[environment]\nmemory_mb = 'much'\n")
    (task / "instruction.md").write_text(" \n")
    (task / "tests" / "test.sh").unlink()
    assert problems_of(task) == {
        ("task.toml", "agent.timeout_sec"),
        ("task.toml", "environment.memory_mb"),
        ("instruction.md", ""),
        ("tests/test.sh", ""),
    }


def test_broken_toml_is_named_by_its_file(tmp_path):
    assert problems_of(make_task(tmp_path, toml="[agent\n")) == {("task.toml", "")}


@pytest.mark.parametrize("name", ["docker-compose.yaml", "compose.yml"])
def test_a_compose_file_is_refused_by_name(tmp_path, name):
    task = make_task(tmp_path)
    (task / "environment" / name).write_text("services: {}\n")
    assert problems_of(task) == {(f"environment/{name}", "")}


def test_a_link_out_of_the_task_is_refused(tmp_path):
    task = make_task(tmp_path)
    (task / "environment" / "work" / "secret").symlink_to("/etc/passwd")
    assert problems_of(task) == {("environment/work/secret", "")}


@pytest.mark.parametrize(
    ("toml", "dockerfile", "work", "image"),
    [
        ("", False, False, ""),
        ("", True, True, ""),
        ("", True, False, "build:one"),
        ('[environment]\ndocker_image = "debian:12"\n', False, False, "debian:12"),
    ],
)
def test_a_task_needs_an_image_unless_it_brings_its_work_tree(tmp_path, toml, dockerfile, work, image):
    task = make_task(tmp_path, toml=toml, work=work)
    if dockerfile:
        (task / "environment" / "Dockerfile").write_text("FROM debian\n")
    assert read_task(task).image == image
    assert (start_tree(task) is not None) == work


def test_the_digest_sees_names_contents_and_the_executable_bit(tmp_path):
    task = make_task(tmp_path)
    digests = [digest_directory(task)]
    (task / "tests" / "test.sh").chmod(0o755)
    digests.append(digest_directory(task))
    (task / "instruction.md").rename(task / "other.md")
    digests.append(digest_directory(task))
    (task / "other.md").write_text("Make a fine.\n")
    digests.append(digest_directory(task))
    assert len(set(digests)) == 4
