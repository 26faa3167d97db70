"""A task, a model row without weights, and rollouts of plain commands: everything real but the model."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from environments.config import Budgets, Sampling
from environments.models import Harness, Model, Rollout, Task, TaskSet
from environments.rollouts import create_rollout, run_rollout
from environments.tasksets import import_taskset

MakeRollout = Callable[..., Rollout]

TEST_SH = """#!/bin/sh
if [ "$(cat /work/out.txt)" = good ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_tasks(
    root: Path, test: str = TEST_SH, toml: str = "", work: Mapping[str, str] = {"start.txt": "a\nb\n"}
) -> TaskSet:
    """A set of one task: write `good` to out.txt. work: the files that the agent finds."""
    task = root / "source" / "good-file"
    (task / "tests").mkdir(parents=True)
    (task / "environment" / "work").mkdir(parents=True)
    for name, text in work.items():
        (task / "environment" / "work" / name).write_text(text)
    (task / "task.toml").write_text(toml)
    (task / "instruction.md").write_text("Write good to out.txt.\n")
    (task / "tests" / "test.sh").write_text(test)
    return import_taskset(name=f"set-{root.name}"[:60], directory=root / "source")


@pytest.fixture
def make_rollout(transactional_db, settings, tmp_path) -> MakeRollout:
    """make(command="...", test="...", toml="...", **budgets) -> a queued rollout of that shell command."""
    settings.DATA_DIR = tmp_path / "data"
    tmp_path.chmod(0o755)

    def make(command: str = "true", *, test: str = TEST_SH, toml: str = "", **budgets: float) -> Rollout:
        taskset = TaskSet.objects.first() or write_tasks(tmp_path, test, toml)
        model, _ = Model.objects.get_or_create(
            name="none", defaults={"path": "none", "renderer": "scripted", "context_length": 4096}
        )
        harness = Harness.objects.create(
            name=f"command-{Harness.objects.count()}", program="command", version="", settings={"command": command}
        )
        return create_rollout(
            task=Task.objects.get(taskset=taskset),
            model=model,
            harness=harness,
            purpose=Rollout.Purpose.TRIAL,
            pool="none",
            sampling=Sampling(),
            budgets=Budgets.model_validate(budgets),
        )

    return make


def drive(rollout: Rollout, owner: str = "driver") -> Rollout:
    run_rollout(rollout.pk, owner=owner, stop=threading.Event())
    rollout.refresh_from_db()
    return rollout
