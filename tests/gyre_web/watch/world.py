"""A long, realistic rollout (two branches, a summary, a sub-agent, versions that change, ANSI, a diff) for the page's tests."""

import base64
import itertools
import random
import struct
from datetime import timedelta
from typing import Any

from django.utils import timezone

from environments.models import Call, Node, Rollout
from tests.gyre_web.watch.makers import make_call, make_member, make_rollout, make_session, make_task
from training.models import Group, Member

WORDS = [
    "the",
    "test",
    "fails",
    "because",
    "list",
    "empty",
    "return",
    "value",
    "parse",
    "line",
    "file",
    "function",
    "expects",
    "index",
    "when",
    "input",
    "has",
    "no",
    "rows",
    "so",
    "we",
    "add",
    "guard",
    "clause",
    "before",
    "loop",
    "and",
    "run",
    "pytest",
    "again",
]
SYSTEM = "You are a careful engineer. You work in /work through a shell. Answer with one command in a bash fence, then wait for its output."
COMMANDS = [
    "ls -la",
    "cat src/report.py",
    "python -m pytest -q tests/",
    "grep -rn 'def total' src",
    "sed -n 1,40p src/report.py",
    "git diff --stat",
]
OUTPUT = (
    "\x1b[1m============================= test session starts ==============================\x1b[0m\n"
    "collected 14 items\n\n"
    "tests/test_report.py \x1b[32m.\x1b[0m\x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[32m.\x1b[0m                                       \x1b[31m[ 28%]\x1b[0m\n\n"
    "=================================== FAILURES ===================================\n"
    "\x1b[31m\x1b[1m_________________________ test_total_of_no_rows_is_zero _________________________\x1b[0m\n\n"
    "    def test_total_of_no_rows_is_zero():\n>       assert total([]) == 0\n"
    "\x1b[1m\x1b[31mE       IndexError: list index out of range\x1b[0m\n\n"
    "\x1b[1m\x1b[31msrc/report.py\x1b[0m:12: IndexError\n"
    "\x1b[31m========================= \x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m13 passed\x1b[0m\x1b[31m in 0.41s\x1b[0m\x1b[31m ==========================\x1b[0m\n"
)
DIFF = """diff --git a/src/report.py b/src/report.py
--- a/src/report.py
+++ b/src/report.py
@@ -9,7 +9,9 @@ def rows(path):

 def total(rows):
     \"\"\"Sum of the last column.\"\"\"
-    last = len(rows[0]) - 1
+    if not rows:
+        return 0
+    last = len(rows[0]) - 1
     return sum(float(row[last]) for row in rows)
"""


class World:
    """Builds nodes and calls one after the other; `random` has a fixed seed."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.session = make_session(rollout)
        self.random = random.Random(7)
        self.indexes = itertools.count(rollout.nodes.count())
        self.depth: dict[int | None, int] = {None: 0}
        self.calls = itertools.count()
        self.at = rollout.started_at or timezone.now()

    def add(self, parent: int | None, role: str, text: str, *, sampled: bool = False, **fields: Any) -> int:
        index = next(self.indexes)
        opener = 1 if sampled else 0
        ids = [258 if sampled else 256, *text.encode(), *([257] if fields.pop("closed", True) else [])]
        logprobs = [-self.random.expovariate(1.6) for _ in ids[opener:]] if sampled else None
        cut = self.random.randrange(2, len(ids))
        version = fields.pop("version", 5)
        Node.objects.create(
            rollout=self.rollout, index=index, parent=parent, depth_tokens=self.depth[parent], key=b"k", role=role,
            sampled=sampled, trainable=fields.pop("trainable", sampled), opener_length=opener,
            ids=struct.pack(f"<{len(ids)}I", *ids),
            behaviour_logprobs=struct.pack(f"<{len(logprobs)}f", *logprobs) if logprobs else None,
            version_spans=[[1, cut, version], [cut, len(ids), version + 1]] if sampled and index % 4 == 2 else [[1, len(ids), version]] if sampled else [],
            message={"role": role, "content": text, **fields.pop("message", {})}, **fields,
        )  # fmt: skip
        self.depth[index] = self.depth[parent] + len(ids)
        return index

    def say(self, num_words: int) -> str:
        text = " ".join(self.random.choice(WORDS) for _ in range(num_words)).capitalize()
        return f"{text}.\n\n```bash\n{self.random.choice(COMMANDS)}\n```"

    def answer(self, parent: int, *, words: int = 24, state: str = "completed", **fields: Any) -> int:
        node = self.add(parent, "assistant", self.say(words), sampled=True, **fields)
        duration = self.random.uniform(1.5, 9)
        call = make_call(
            self.rollout, self.session, next(self.calls), prompt_node=parent, answer_node=node, state=state,
            num_prompt_tokens=self.depth[parent], num_sampled_tokens=120, finish_reason="stop", engines=["cell-0"],
            first_token_s=0.21, duration_s=duration, held_s=1.1 if node % 9 == 0 else 0.0,
        )  # fmt: skip
        Call.objects.filter(pk=call.pk).update(started_at=self.at)
        self.at += timedelta(seconds=duration + self.random.uniform(0.2, 4))
        return node


def build_world(turns: int = 14, **fields: Any) -> Rollout:
    started = timezone.now() - timedelta(minutes=7)
    task = fields.pop("task", None) or make_task()
    rollout = make_rollout(task=task, started_at=started, **fields)
    Rollout.objects.filter(pk=rollout.pk).update(created_at=started - timedelta(seconds=9))
    world = World(rollout)
    last = world.add(None, "system", SYSTEM)
    last = world.add(
        last, "user", "The report of an empty file crashes. Find out why, fix it, and keep the other tests green."
    )
    for turn in range(turns):
        last = world.answer(last, words=18 + turn % 5 * 9, version=5 if turn < turns // 2 else 6)
        last = world.add(
            last,
            "user",
            OUTPUT
            if turn % 2
            else "total 24\ndrwxr-xr-x 4 agent agent 4096 src\n-rw-r--r-- 1 agent agent  412 README.md",
        )
        if turn == turns // 2:
            world.answer(last, words=10, state="aborted", trainable=False, closed=False)
            world.answer(last, words=60, branch_role="main-summary")
    agent = world.add(None, "system", "You search the repository for others.", branch_role="sub-agent")
    agent = world.add(agent, "user", "Where is total() called?", branch_role="sub-agent")
    world.answer(agent, words=20, branch_role="sub-agent")
    rollout.num_calls = turns + 3
    rollout.save(update_fields=["num_calls"])
    return rollout


def end_world(rollout: Rollout, *, reward: float = 0.75) -> Rollout:
    rollout.refresh_from_db()
    rollout.state, rollout.outcome, rollout.reward = "ended", "completed", reward
    rollout.harness_output, rollout.diff = OUTPUT * 3, DIFF
    rollout.reward_parts, rollout.verifier_trials = {"hidden_tests": 0.75, "style": 1.0}, 1
    rollout.verifier_log = "14 hidden tests: \x1b[32m11 passed\x1b[0m, 3 failed\n"
    rollout.flags = [{"kind": "tests_edited", "evidence": "tests/test_report.py changed"}]
    rollout.harness_ended_at = timezone.now() - timedelta(seconds=40)
    rollout.ended_at = timezone.now() - timedelta(seconds=31)
    rollout.save()
    return rollout


def train_world(rollout: Rollout) -> Member:
    """As the trainer leaves it: advantage, and its own logprobs and mask of every sampled node."""
    stats = {}
    for node in rollout.nodes.filter(sampled=True):
        logprobs = struct.unpack(f"<{len(node.behaviour_logprobs or b'') // 4}f", bytes(node.behaviour_logprobs or b""))
        near = [value + random.Random(node.index).uniform(-0.3, 0.3) for value in logprobs]
        stats[str(node.index)] = {
            "trainer_logprobs": base64.b64encode(struct.pack(f"<{len(near)}f", *near)).decode(),
            "loss_mask": base64.b64encode(bytes([1] * len(near))).decode(),
        }
    member = make_member(rollout, disposition="trained", advantage=1.31, staleness=1, token_stats=stats)
    Group.objects.filter(pk=member.group_id).update(state="eaten")
    return member
