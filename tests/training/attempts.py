"""An attempt on a tiny model, its demonstrations and groups, as rows: what the controller and the gateway leave."""

import numpy as np
from django.utils import timezone

from environments.models import Harness, Model, Node, Outcome, Rollout, Task, TaskSet
from tests.training.tiny import VOCABULARY, save_tiny_model
from training.config import RunConfig
from training.models import Attempt, Cell, Group, Member, OptimizerStep, Run


def make_attempt(tmp_path, *, name="demo", **changes):
    """A warming attempt with a core cell. changes: sections of the config as dicts."""
    path = save_tiny_model(tmp_path / "model")
    Model.objects.get_or_create(
        name="tiny", defaults={"path": str(path), "renderer": "scripted", "context_length": 256}
    )
    sections = {
        "model": {"name": "tiny"},
        "tasks": {"groups_per_step": 2, "rollouts_per_group": 3},
        "warm_start": {"demonstrations": 8, "batch_size": 2, "learning_rate": 1e-2},
        "optimization": {"steps": 4, "learning_rate": 1e-2, "micro_batch_tokens": 128, "precision": "fp32"},
        "engine": {"dtype": "float32"},
    }
    for key, value in changes.items():
        sections[key] = {**sections.get(key, {}), **value}
    config = RunConfig.model_validate(sections)
    run = Run.objects.create(name=name)
    attempt = Attempt.objects.create(
        run=run, number=1, config=config.model_dump(mode="json"), state=Attempt.State.WARMING
    )
    Cell.objects.create(attempt=attempt, index=0, wanted_role=Cell.Role.TRAINS)
    return attempt


def make_task(name="t"):
    taskset, _ = TaskSet.objects.get_or_create(
        name="set", defaults={"source": "generated:x", "digest": "0", "directory": "/nowhere"}
    )
    task, _ = Task.objects.get_or_create(
        taskset=taskset, name=name,
        defaults={"family": "sort", "directory": "/nowhere", "instruction": "", "digest": "", "agent_timeout_s": 1,
                  "verifier_timeout_s": 1},
    )  # fmt: skip
    return task


def make_rollout(attempt, seed, *, reward=1.0, demonstration=False, outcome=Outcome.COMPLETED, version=0, task="t"):
    """Ended, with a prompt node and two answers around a tool result; ids follow the seed."""
    harness, _ = Harness.objects.get_or_create(name="h", defaults={"program": "scripted", "version": "1"})
    rollout = Rollout.objects.create(
        task=make_task(task), model=Model.objects.get(name="tiny"), harness=harness,
        purpose=Rollout.Purpose.DEMONSTRATION if demonstration else Rollout.Purpose.TRAIN,
        pool=attempt.pool + ("-expert" if demonstration else ""),
        state=Rollout.State.ENDED, outcome=outcome, reward=reward, ended_at=timezone.now(),
        num_calls=2, num_branches=1, sampled_tokens=9, longest_context=25,
    )  # fmt: skip
    source = np.random.default_rng(seed)
    depth = 0
    for index, (size, sampled) in enumerate([(8 + seed % 5, False), (6, True), (4, False), (7, True)]):
        opener = 2 if sampled else 0
        logprobs = source.normal(-4, 0.2, size - opener).astype("<f4").tobytes()
        spans = [[opener, size, -1 if demonstration else version]]
        Node.objects.create(
            rollout=rollout, index=index, parent=index - 1 if index else None, depth_tokens=depth, key=b"",
            role="assistant" if sampled else "user", sampled=sampled, trainable=sampled, opener_length=opener,
            ids=source.integers(1, VOCABULARY, size).astype("<u4").tobytes(),
            behaviour_logprobs=logprobs if sampled and not demonstration else None,
            version_spans=spans if sampled else [], message={},
        )  # fmt: skip
        depth += size
    return rollout


def make_demonstrations(attempt, count=8):
    """All alike, so that a few steps learn them."""
    for seed in range(count):
        make_rollout(attempt, 1000, demonstration=True, task=f"d{seed}")


def request_step(attempt, number, *, rewards=((1, 0, 0), (1, 1, 0)), version=0):
    """Ready groups with these rewards (None: a verifier error), given to a requested step."""
    step = OptimizerStep.objects.create(attempt=attempt, number=number, trains_version=version)
    for place, values in enumerate(rewards):
        group = Group.objects.create(
            attempt=attempt, index=number * 10 + place, task=make_task(), state=Group.State.READY, step=step
        )
        for slot, reward in enumerate(values):
            outcome = Outcome.VERIFIER_ERROR if reward is None else Outcome.COMPLETED
            seed = number * 100 + place * 10 + slot
            rollout = make_rollout(attempt, seed, reward=reward, outcome=outcome, version=version)
            Member.objects.create(group=group, rollout=rollout, slot=slot)
    return step
