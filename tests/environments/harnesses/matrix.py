"""The contract matrix: what each harness does in each situation, and what the tree must be then.

From:  8 harnesses x situations; the answers are a script's, in the harness's own tools (environments.scripted).
To:    test_matrix.py, which runs cells; `EXPECTED` is written by hand from what the program is known to do.
Holds: no third-party prompt is in here: cells are about the shape of calls, roots and branches.

A cell's expectation names, in this order: the outcome; the calls by role in order of their opening (`m` main, `M` its
summary, `s` sub-agent, `S` its summary, `R` refused, `A` aborted; at the end `.` for each side call, whose place among
the others is chance); roots by the same letters; the number of branches (leaves); the differences that were forgiven.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.harnesses.trial import STEPS, TITLE, Report
from environments.scripted.engine import Fault

LETTERS = {"main": "m", "main-summary": "M", "sub-agent": "s", "sub-summary": "S", "side": ".", "": "-"}
SUMMARY = "summari[sz]|CONTEXT CHECKPOINT COMPACTION|compaction|Respond with TEXT ONLY"
SUB_TASK = "Look around as the second one."
LONG_TEXT = "I have a lot to say. " * 60


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the model does, and what goes wrong."""

    steps: Sequence[Any] = STEPS
    further: Sequence[Any] = ()
    """Entries of the script after the main one."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    max_tokens: int = 32_000
    room_tokens: int = 0
    """Context left above the first prompt, which has another length in every harness; 0: as much as it likes."""

    @property
    def script(self) -> list[Any]:
        return [[".", {"steps": list(self.steps)}], [TITLE, "A small file"], *self.further]


WRITE, READ, FINISH = STEPS
NOISE = {"say": "I look.", "run": "head -c 9000 /dev/zero | tr '\\0' x"}
SITUATIONS: dict[str, Situation] = {
    "base": Situation(),
    "parallel": Situation(
        steps=({"all": [{"write": ["out.txt", "good"]}, {"run": "echo beside"}]}, FINISH),
    ),
    "bad-arguments": Situation(steps=({"bad": "printf good > out.txt"}, WRITE, READ, FINISH)),
    "unknown-tool": Situation(steps=({"call": ["no_such_tool", '{"x": 1}']}, WRITE, FINISH)),
    "length": Situation(steps=(LONG_TEXT, WRITE, FINISH), max_tokens=400),
    "empty": Situation(steps=({"empty": True}, WRITE, FINISH)),
    "reasoning": Situation(steps=({"think": "Only a thought."}, WRITE, FINISH)),
    "overflow": Situation(
        steps=(NOISE, NOISE, NOISE, NOISE, WRITE, READ, FINISH),
        further=([SUMMARY, "<summary>The file out.txt has still to be written.</summary>"],),
        room_tokens=30_000,
    ),
    "refused-once": Situation(faults={1: Fault(refuse=500)}),
    "pause": Situation(faults={1: Fault(hang_s=2.0)}),
    "sub-agent": Situation(
        steps=({"delegate": SUB_TASK}, WRITE, READ, FINISH),
        further=([f"{SUB_TASK}(?!.*delegat)", {"steps": [{"run": "ls"}, "I have looked."]}],),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is compared of a Report."""

    outcome: str
    calls: str
    roots: str
    branches: int
    differences: Mapping[str, int] = field(default_factory=dict)


def shape_of(report: Report) -> Shape:
    calls = [LETTERS[call.role] if call.state == "completed" else call.state[0].upper() for call in report.calls]
    sides = calls.count(".")
    return Shape(
        outcome=report.outcome if report.reward == 1.0 else f"{report.outcome}, unsolved",
        calls="".join(letter for letter in calls if letter != ".") + "." * sides,
        roots="".join(LETTERS[role] * number for role, number in sorted(report.roles.items())),
        branches=report.num_branches,
        differences=dict(report.differences),
    )


def shape(calls: str, branches: int = 1, outcome: str = "completed", roots: str = "m", **differences: int) -> Shape:
    return Shape(outcome=outcome, calls=calls, roots=roots, branches=branches, differences=differences)


REWRITTEN = shape("mmm", arguments=2)
"""The plain task by a harness that writes the arguments of our two calls anew."""
KEPT = shape("mmm")
UNSOLVED = "completed, unsolved"

EXPECTED: dict[tuple[str, str], Shape] = {
    ("mini-tools", "base"): KEPT,
    ("pi-chat", "base"): REWRITTEN,
    ("codex", "base"): KEPT,
    ("claude-bare", "base"): REWRITTEN,
    ("qwen", "base"): REWRITTEN,
}
CHOSEN = set(EXPECTED)
