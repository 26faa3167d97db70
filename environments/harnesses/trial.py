"""One harness through a whole small task against the scripted engine, and what was seen of it at the wire.

From:  `manage.py harness check`, the contract matrix (tests.environments.harnesses.matrix).
To:    a Report: calls, dialect, roles, branches, differences, time, outcome, reward.
Holds: everything is real but the model: sandbox, relay, gateway, tree, verifier; the script knows no harness, it finds
       in each request's own tools how to write and read.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from environments.config import Budgets, Sampling
from environments.harnesses import HARNESSES
from environments.models import Call, Harness, Model, Node, Outcome, Rollout, Task, TaskSet
from environments.rollouts import create_rollout, run_rollout
from environments.scripted.script import build_rule
from environments.scripted.stage import Stage
from environments.tasksets import import_taskset

TASKSET = "harness-trial"
INSTRUCTION = "Write the word good into the file out.txt, read the file back, then say that you are done."
TEST = """#!/bin/sh
if [ "$(cat /work/out.txt 2>/dev/null)" = good ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
CONTEXT_TOKENS = 2_000_000
"""A token is a byte here, and one program's first request has some 80 kB."""
STEPS: tuple[Any, ...] = (
    {"say": "I write the file.", "write": ["out.txt", "good"]},
    {"say": "I read it.", "read": "out.txt"},
    {"finish": "The file is written."},
)
TITLE = "title generator|concise title|json_schema"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One call."""

    dialect: str
    state: str
    role: str
    streamed: bool
    finish_reason: str
    num_prompt_tokens: int
    num_sampled_tokens: int
    agent: str


@dataclass(frozen=True, kw_only=True)
class Report:
    harness: str
    program: str
    version: str
    outcome: str
    reward: float | None
    error: str
    exit_code: int | None
    wall_s: float
    """From the start of the harness to its end."""
    calls: Sequence[Seen]
    num_roots: int
    num_branches: int
    roles: Mapping[str, int]
    """Roots by role."""
    differences: Mapping[str, int]

    @property
    def is_well(self) -> bool:
        return self.outcome == Outcome.COMPLETED and self.reward == 1.0

    @property
    def dialects(self) -> str:
        return ", ".join(dict.fromkeys(call.dialect for call in self.calls))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_well": self.is_well}


def try_harness(stage: Stage, harness: Harness, script: Sequence[Any] | None = None, **budgets: Any) -> Report:
    """One rollout of the small task; script: entries for build_rule, None: write, read, finish."""
    stage.play(build_rule(script or small_script()))
    return read_report(run_one(stage, harness, **budgets))


def small_script(steps: Sequence[Any] = STEPS) -> list[Any]:
    return [[".", {"steps": list(steps)}], [TITLE, "A small file"]]


def run_one(stage: Stage, harness: Harness, *, max_tokens: int = 32_000, **budgets: Any) -> Rollout:
    """Driven to its end in this thread. max_tokens: of one answer."""
    limits: dict[str, Any] = {
        "max_calls": 200,
        "max_sampled_tokens": 200_000,
        "max_context_tokens": CONTEXT_TOKENS,
        "wall_time_s": 1200.0,
        "overall_time_s": 1800.0,
        "idle_s": 600.0,
    }
    rollout = create_rollout(
        task=small_task(),
        model=bytes_model(),
        harness=harness,
        purpose=Rollout.Purpose.TRIAL,
        pool=stage.pool,
        sampling=Sampling(max_tokens=max_tokens),
        budgets=Budgets.model_validate(limits | budgets),
    )
    run_rollout(rollout.pk, owner=f"trial-{time.monotonic_ns()}", stop=threading.Event())
    rollout.refresh_from_db()
    return rollout


def trial_harness(program: str, *, name: str = "", delivery: str = "", **given: Any) -> Harness:
    """A row with the program's pinned version and habits; given: its settings."""
    found = HARNESSES[program]
    return Harness.objects.update_or_create(
        name=name or f"trial-{program}",
        defaults={
            "program": program,
            "version": found.version(),
            "settings": given,
            "delivery": delivery or found.habits.delivery,
        },
    )[0]


def small_task() -> Task:
    known = TaskSet.objects.filter(name=TASKSET).first()
    if known is None:
        source = Path(settings.DATA_DIR) / "harness-trial"
        directory = source / "good-file"
        (directory / "tests").mkdir(parents=True, exist_ok=True)
        (directory / "environment" / "work").mkdir(parents=True, exist_ok=True)
        (directory / "environment" / "work" / "notes.txt").write_text("Nothing yet.\n")
        (directory / "task.toml").write_text('version = "1.0"\n[agent]\ntimeout_sec = 1200\n')
        (directory / "instruction.md").write_text(INSTRUCTION + "\n")
        (directory / "tests" / "test.sh").write_text(TEST)
        (directory / "solution").mkdir(exist_ok=True)
        (directory / "solution" / "solve.sh").write_text("#!/bin/sh\nprintf good > out.txt\n")
        known = import_taskset(name=TASKSET, directory=source)
    return Task.objects.get(taskset=known)


def bytes_model() -> Model:
    """A token is a byte; no weights."""
    return Model.objects.get_or_create(
        name="harness-trial", defaults={"path": "none", "renderer": "scripted", "context_length": CONTEXT_TOKENS}
    )[0]


def read_report(rollout: Rollout) -> Report:
    nodes = {node.index: node for node in Node.objects.filter(rollout=rollout).defer("ids", "behaviour_logprobs")}
    roots = [node for node in nodes.values() if node.parent is None]
    calls = [read_call(call, nodes) for call in Call.objects.filter(rollout=rollout).order_by("index")]
    sandbox = rollout.sandboxes.filter(purpose="agent").order_by("created_at").last()
    ended_at = rollout.harness_ended_at or rollout.ended_at
    return Report(
        harness=rollout.harness.name,
        program=rollout.harness.program,
        version=rollout.harness.version,
        outcome=rollout.outcome,
        reward=rollout.reward,
        error=rollout.error,
        exit_code=rollout.exit_code,
        wall_s=(ended_at - sandbox.created_at).total_seconds() if sandbox and ended_at else 0.0,
        calls=calls,
        num_roots=len(roots),
        num_branches=rollout.num_branches,
        roles=dict(Counter(root.branch_role for root in roots)),
        differences=dict(rollout.drift),
    )


def read_call(call: Call, nodes: Mapping[int, Node]) -> Seen:
    index = call.answer_node if call.answer_node is not None else call.prompt_node
    node = nodes.get(index) if index is not None else None
    agent = next(
        (flag.removeprefix("agent:") for flag in (node.flags if node else ()) if flag.startswith("agent:")), ""
    )
    return Seen(
        dialect=call.dialect,
        state=call.state,
        role=node.branch_role if node else "",
        streamed=call.streamed,
        finish_reason=call.finish_reason,
        num_prompt_tokens=call.num_prompt_tokens,
        num_sampled_tokens=call.num_sampled_tokens,
        agent=agent,
    )
