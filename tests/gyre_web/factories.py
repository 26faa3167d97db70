"""Realistic rows for the tests of pages: a catalog, people, and runs as the demo leaves them.

Holds: seeded, so that the same call makes the same numbers; one bulk insert a table.
"""

import random
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from environments.models import Call, Engine, Harness, Model, Node, Outcome, Rollout, Sandbox, Session, Task, TaskSet
from gyre_web.accounts.models import User
from training.config import RunConfig
from training.models import (
    Attempt,
    Cell,
    Checkpoint,
    Group,
    Member,
    Metric,
    OptimizerStep,
    Run,
    RunEvent,
    Version,
)

FAMILIES = ("create", "append", "copy", "rename", "delete", "mkdir", "sort", "count", "replace", "operator")


def make_user(username: str = "ada", role: str = "admin", **fields: Any) -> User:
    user, _ = User.objects.get_or_create(username=username, defaults={"role": role, **fields})
    return user


def make_catalog(num_tasks: int = 24) -> tuple[Model, Harness, list[Task]]:
    model, _ = Model.objects.get_or_create(
        name="smollm2-135m",
        defaults={
            "path": "models/smollm2-135m",
            "renderer": "chatml",
            "context_length": 8192,
            "num_parameters": 134_515_008,
            "settings": {"tree_packing": True, "model_type": "llama"},
        },
    )
    harness, _ = Harness.objects.get_or_create(
        name="mini-swe-agent",
        defaults={"program": "mini-swe-agent", "version": "2.4.6", "settings": {"step_limit": 8}},
    )
    taskset, made = TaskSet.objects.get_or_create(
        name="shell-and-python",
        defaults={
            "description": "Small shell and Python tasks of ten families.",
            "source": "generated:shell-and-python",
            "digest": "5f0c" * 16,
            "directory": "tasksets/shell-and-python",
        },
    )
    if made:
        Task.objects.bulk_create([make_task(taskset, index) for index in range(num_tasks)])
    return model, harness, list(taskset.tasks.all())


def make_task(taskset: TaskSet, index: int) -> Task:
    family = FAMILIES[index % len(FAMILIES)]
    return Task(
        taskset=taskset,
        name=f"{family}-{index:04d}",
        family=family,
        split=Task.Split.HELDOUT if index % 4 == 3 else Task.Split.TRAIN,
        directory=f"tasksets/shell-and-python/{family}-{index:04d}",
        instruction=f"In the file notes-{index}.txt, {family} the lines that mention `harbour`.",
        digest="ab" * 32,
        agent_timeout_s=120.0,
        verifier_timeout_s=30.0,
        settings={"metadata": {"family": family}},
    )


class RunFactory:
    """A run of `steps` done steps with B groups of N; `make` returns its attempt."""

    def __init__(self, *, seed: int = 1, groups_per_step: int = 4, rollouts_per_group: int = 6) -> None:
        self.random = random.Random(seed)
        self.b, self.n = groups_per_step, rollouts_per_group
        self.now = timezone.now()

    def make(
        self,
        *,
        name: str = "demo",
        owner: User | None = None,
        steps: int = 7,
        state: str = "running",
        reason: str = "",
        nodes: bool = True,
    ) -> Attempt:
        self.model, self.harness, tasks = make_catalog()
        self.tasks = [task for task in tasks if task.split == Task.Split.TRAIN]
        run = Run.objects.create(name=name, owner=owner)
        config = RunConfig.model_validate(
            {
                "tasks": {"groups_per_step": self.b, "rollouts_per_group": self.n},
                "warm_start": {"demonstrations": 208},
                "optimization": {"steps": 9},
            }
        )
        started = self.now - timedelta(minutes=24)
        attempt = Attempt.objects.create(
            run=run,
            number=1,
            config=config.model_dump(mode="json"),
            provenance={"commit": "85546a8", "packages": {"torch": "2.13.0", "vllm": "0.32.0"}},
            state=state,
            state_reason=reason,
            phase="Step 8 of 9: 17 of 24 rollouts ended" if state == "running" else "",
            phase_progress={"done": 17, "total": 24, "unit": "rollouts"} if state == "running" else {},
            step=steps,
            version=steps,
            consumed_rollouts=steps * self.b * self.n,
            started_at=started,
            ended_at=None if state in ("running", "paused", "queued", "warming") else self.now,
        )
        Attempt.objects.filter(pk=attempt.pk).update(created_at=started)
        self.attempt, self.started = attempt, started
        self.add_steps(steps)
        self.add_groups(steps, nodes)
        self.add_metrics(steps)
        self.add_cells(steps)
        self.add_events(steps)
        return attempt

    def add_steps(self, steps: int) -> None:
        self.steps = []
        for number in range(1, steps + 1):
            at = self.started + timedelta(seconds=420 + 70 * number)
            self.steps.append(
                OptimizerStep(
                    attempt=self.attempt,
                    number=number,
                    state=OptimizerStep.State.DONE,
                    trains_version=number - 1,
                    started_at=at - timedelta(seconds=18),
                    ended_at=at,
                )
            )
        OptimizerStep.objects.bulk_create(self.steps)
        for number in range(steps + 1):
            at = self.started + timedelta(seconds=425 + 70 * number)
            Version.objects.create(
                attempt=self.attempt, number=number, step=number, path=f"v{number}", published_at=at, publish_s=1.3,
                evaluation={"heldout": {"n": 120, "solved": 44, "rate": 0.367}} if number == 0 else {},
            )  # fmt: skip
        if steps:
            Checkpoint.objects.create(
                attempt=self.attempt, step=steps, version=steps, path="c", size_bytes=1_614_000_000
            )

    def add_groups(self, steps: int, nodes: bool) -> None:
        groups, rollouts, members = [], [], []
        open_groups = self.b if self.attempt.state in ("running", "paused") else 0
        for index in range(steps * self.b + open_groups):
            step = self.steps[index // self.b] if index < steps * self.b else None
            group = Group(
                attempt=self.attempt,
                index=index,
                task=self.random.choice(self.tasks),
                state=Group.State.EATEN if step else Group.State.OPEN,
                dispatched_version=index // self.b,
                step=step,
            )
            skill = 0.25 + 0.06 * (index // self.b)
            chance = 0.0 if group.task.family == "operator" else min(0.95, self.random.gauss(skill, 0.25))
            made = [self.rollout(group, slot, chance) for slot in range(self.n)]
            rewards = {rollout.reward for rollout in made if rollout.reward is not None}
            group.no_signal = step is not None and len(rewards) == 1
            groups.append(group)
            rollouts.extend(made)
            members.extend(self.members(group, made))
        Group.objects.bulk_create(groups)
        Rollout.objects.bulk_create(rollouts)
        Member.objects.bulk_create(members)
        for rollout in rollouts:
            Rollout.objects.filter(pk=rollout.pk).update(created_at=rollout.started_at or self.now)
        self.rollouts = rollouts
        if nodes:
            self.add_nodes([rollout for rollout in rollouts if rollout.state != Rollout.State.QUEUED][:60])

    def rollout(self, group: Group, slot: int, chance: float) -> Rollout:
        step = group.index // self.b
        start = self.started + timedelta(seconds=400 + 70 * step + 3 * slot)
        live = group.step is None and slot >= 3
        outcome, reward = self.ending(chance)
        sampled = self.random.randint(60, 480)
        return Rollout(
            task=group.task,
            model=self.model,
            harness=self.harness,
            pool=self.attempt.pool,
            state=(Rollout.State.QUEUED if slot == 5 else Rollout.State.RUNNING) if live else Rollout.State.ENDED,
            outcome="" if live else outcome,
            reward=None if live else reward,
            error="The verifier wrote no reward.json within 30 s." if outcome == Outcome.VERIFIER_ERROR else "",
            flags=[{"kind": "reads_tests", "evidence": "cat /tests/test.sh"}] if sampled % 17 == 0 else [],
            started_at=None if slot == 5 and live else start,
            ended_at=None if live else start + timedelta(seconds=sampled / 12),
            last_activity_at=self.now - timedelta(seconds=slot),
            num_calls=self.random.randint(2, 8),
            num_branches=1,
            sampled_tokens=sampled,
            distinct_tokens=sampled + 310,
            longest_context=sampled + 290,
            oldest_version=step,
            newest_version=step + (1 if slot == 4 else 0),
            harness_output="$ mini\nstep 1: ls\nnotes.txt\n",
        )

    def ending(self, chance: float) -> tuple[str, float | None]:
        draw = self.random.random()
        if draw < 0.02:
            return Outcome.VERIFIER_ERROR, None
        reward = 1.0 if self.random.random() < chance else 0.0
        if reward == 0.0 and draw < 0.25:
            return Outcome.BUDGET_REACHED, 0.0
        if reward == 0.0 and draw < 0.3:
            return Outcome.HARNESS_CRASH, 0.0
        return Outcome.COMPLETED, reward

    def members(self, group: Group, rollouts: list[Rollout]) -> list[Member]:
        scored = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        mean = sum(scored) / len(scored) if scored else 0.0
        made = []
        for slot, rollout in enumerate(rollouts):
            excluded = rollout.outcome == Outcome.VERIFIER_ERROR
            trained = group.step is not None and not excluded
            held = group.step is None and slot == 1 and group.index % 2 == 0
            made.append(
                Member(
                    group=group,
                    rollout=rollout,
                    slot=slot,
                    hold=held,
                    hold_reason="review gate: sampled" if held else "",
                    hold_until=self.now + timedelta(minutes=50) if held else None,
                    disposition="excluded" if excluded else "trained" if trained else "held" if held else "pending",
                    reason="verifier error" if excluded else "",
                    advantage=None if not trained or rollout.reward is None else rollout.reward - mean,
                    staleness=0 if trained else None,
                    trained_tokens=rollout.sampled_tokens if trained else 0,
                    num_samples=1 if trained else 0,
                )
            )
        return made

    def add_nodes(self, rollouts: list[Rollout]) -> None:
        for rollout in rollouts:
            session = Session.objects.create(rollout=rollout)
            messages = [
                {"role": "system", "content": "You are a shell."},
                {"role": "user", "content": rollout.task.instruction},
                {"role": "assistant", "content": "```\nls -la\n```"},
                {"role": "user", "content": f"total 4\nnotes-{rollout.task.name}.txt"},
                {"role": "assistant", "content": "```\nsed -i /harbour/d notes.txt && echo DONE\n```"},
            ]
            Node.objects.bulk_create(
                Node(
                    rollout=rollout,
                    index=index,
                    parent=index - 1 if index else None,
                    depth_tokens=index * 40,
                    key=uuid.uuid4().bytes * 2,
                    role=message["role"],
                    sampled=message["role"] == "assistant",
                    trainable=message["role"] == "assistant",
                    ids=b"\x01\x00\x00\x00" * 40,
                    message=message,
                )
                for index, message in enumerate(messages)
            )
            Call.objects.create(
                rollout=rollout, session=session, index=0, dialect="chat", digest=b"0" * 32, state="completed",
                started_at=self.now,
            )  # fmt: skip
            if rollout.state == Rollout.State.RUNNING:
                Sandbox.objects.create(
                    session=session, rollout=rollout, host="gyre-1", directory="sandboxes/a",
                    lease_expires_at=self.now + timedelta(seconds=40),
                )  # fmt: skip

    def add_metrics(self, steps: int) -> None:
        rows = []
        for step in range(1, steps + 1):
            for key, value in self.numbers(step).items():
                rows.append(Metric(attempt=self.attempt, kind="policy", step=step, key=key, value=value))
        for step in range(1, 53):
            loss = 0.9 / (1 + step / 6) + self.random.gauss(0, 0.02)
            rows.append(Metric(attempt=self.attempt, kind="supervised", step=step, key="loss", value=loss))
        for step, rate in ((0, 0.367), (steps, 0.608)) if steps else ():
            rows.append(Metric(attempt=self.attempt, kind="evaluation", step=step, key="heldout/rate", value=rate))
        Metric.objects.bulk_create(rows)

    def numbers(self, step: int) -> dict[str, float]:
        jitter = self.random.gauss(0, 0.02)
        return {
            "reward_mean": 0.34 + 0.04 * step + jitter,
            "reward_std": 0.42 - 0.01 * step,
            "solved_fraction": 0.36 + 0.04 * step + jitter,
            "no_signal_fraction": 0.3 - 0.015 * step + jitter,
            "length_mean": 240 - 6 * step + 100 * jitter,
            "context_max": 760 + 400 * jitter,
            "entropy": 0.62 - 0.03 * step + jitter / 4,
            "mismatch_mean": 0.0021 + abs(jitter) / 20,
            "mismatch_max": 0.21 + abs(jitter),
            "ratio_mean": 1.0 + jitter / 10,
            "ratio_max": 1.6 + jitter * 4,
            "staleness_mean": 0.1 + abs(jitter),
            "staleness_max": 1.0,
            "generation_s": 34.0 + 40 * jitter,
            "train_s": 17.0 + 10 * jitter,
            "publish_s": 1.4,
            "save_s": 0.8,
            "load_s": 0.4,
            "grad_norm": 0.8 + 3 * jitter,
            "loss": -0.02 + jitter / 10,
            "peak_memory_bytes": 5.1e9 + 1e8 * step,
        }

    def add_cells(self, steps: int) -> None:
        engine = Engine.objects.create(
            pool=self.attempt.pool, name="cell 0", base_url="unix:///engine.sock", model_name="smollm2-135m",
            state=Engine.State.SERVING, version=steps, num_running=9, num_waiting=2, kv_use=0.41, tokens_per_s=184.0,
            heartbeat_at=self.now,
        )  # fmt: skip
        history: list[list[str]] = [[self.started.isoformat(), "trains"]]
        at: datetime = self.started + timedelta(seconds=400)
        for _ in range(steps + 1):
            history.append([at.isoformat(), "turning"])
            history.append([(at + timedelta(seconds=3)).isoformat(), "serves"])
            history.append([(at + timedelta(seconds=49)).isoformat(), "turning"])
            history.append([(at + timedelta(seconds=51)).isoformat(), "trains"])
            at += timedelta(seconds=70)
        Cell.objects.create(
            attempt=self.attempt, index=0, host="gyre-1", role=Cell.Role.SERVES, wanted_role=Cell.Role.SERVES,
            engine=engine, processes={"engine": {"pid": 4121}, "trainer": {"pid": 4170}}, role_since=at,
            history=history[:-2], lease_owner="gyre-1:4080", lease_expires_at=self.now + timedelta(seconds=20),
        )  # fmt: skip

    def add_events(self, steps: int) -> None:
        rows = [
            ("info", "started", "Attempt 1 was started."),
            ("info", "warm_start", "208 demonstrations were made in 61 s."),
        ]
        rows += [("info", "version_published", f"Version {n} was published in 1.3 s.") for n in range(steps + 1)]
        rows.append(("warning", "worker_lost", "A rollout worker stopped answering; its 3 rollouts were taken over."))
        for index, (level, kind, text) in enumerate(rows):
            event = RunEvent.objects.create(attempt=self.attempt, level=level, kind=kind, text=text)
            RunEvent.objects.filter(pk=event.pk).update(at=self.started + timedelta(seconds=70 * index))


def make_run(**fields: Any) -> Attempt:
    """A running demo with an owner, seven steps done."""
    sizes = {key: fields.pop(key) for key in ("seed", "groups_per_step", "rollouts_per_group") if key in fields}
    return RunFactory(**sizes).make(**fields)
