"""Rows that tests of training need: a small catalog, and a config that it satisfies."""

import uuid
from pathlib import Path
from typing import Any

from environments.models import Harness, Model, Outcome, Rollout, Task, TaskSet
from training.config import RunConfig


def make_catalog(directory: Path, *, num_train: int = 24, num_heldout: int = 12, num_families: int = 4) -> None:
    (directory / "model").mkdir(parents=True, exist_ok=True)
    Model.objects.create(name="tiny", path=str(directory / "model"), renderer="scripted", context_length=2048)
    Harness.objects.create(name="mini", program="mini-swe-agent", version="2.4.6")
    taskset = TaskSet.objects.create(name="small", source="generated:test", digest="0", directory=str(directory))
    Task.objects.bulk_create(
        Task(
            taskset=taskset,
            name=f"{split}-{number}",
            family=f"family-{number % num_families}",
            split=split,
            directory=str(directory / f"{split}-{number}"),
            instruction="Do it.",
            digest="0",
            agent_timeout_s=60,
            verifier_timeout_s=60,
        )
        for split, count in ((Task.Split.TRAIN, num_train), (Task.Split.HELDOUT, num_heldout))
        for number in range(count)
    )


def config_data(**sections: Any) -> dict[str, Any]:
    """Plain data of a config that make_catalog's rows satisfy; each section given is merged into its defaults."""
    data: dict[str, Any] = {
        "model": {"name": "tiny"},
        "harness": {"name": "mini", "max_running": 100},
        "tasks": {"mixture": [{"taskset": "small"}], "groups_per_step": 2, "rollouts_per_group": 3},
        "optimization": {"steps": 2},
        "evaluation": {"tasks": 0},
    }
    for name, section in sections.items():
        data[name] = {**data[name], **section} if isinstance(section, dict) and name in data else section
    return data


def make_config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(config_data(**sections))


def end_rollout(rollout_id: uuid.UUID, *, outcome: Outcome = Outcome.COMPLETED, reward: float | None = 1.0) -> None:
    """What a rollout worker does at the end, on the row only."""
    Rollout.objects.filter(pk=rollout_id).update(
        state=Rollout.State.ENDED, outcome=outcome, reward=reward, lease_owner="", lease_expires_at=None
    )
