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

from environments.harnesses.trial import INSTRUCTION, STEPS, TITLE, Report
from environments.scripted.engine import Fault

LETTERS = {"main": "m", "main-summary": "M", "sub-agent": "s", "sub-summary": "S", "side": ".", "": "-"}
LAST_USER = "\nuser\n(?!.*\nuser\n).*"
SUMMARY = (
    "context summarization|summarizes internal chat history|"
    f"{LAST_USER}(CONTEXT CHECKPOINT COMPACTION|Respond with TEXT ONLY)"
)
SUB_TASK = "Look around as the second one."
SUB_PROMPT = f"^(?!.*{INSTRUCTION[:30]}).*{SUB_TASK}"
"""The parent's prompt has the sub-agent's task too, in the call that started it."""
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
NOISE = {"say": "I look.", "run": "head -c 28000 /dev/zero | tr '\\0' x"}
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
        steps=(*[NOISE] * 8, WRITE, READ, FINISH),
        further=([SUMMARY, "<summary>The file out.txt has still to be written.</summary>"],),
        room_tokens=200_000,
    ),
    "refused-once": Situation(faults={1: Fault(refuse=500)}),
    "pause": Situation(faults={1: Fault(hang_s=2.0)}),
    "sub-agent": Situation(
        steps=({"delegate": SUB_TASK}, WRITE, READ, FINISH),
        further=([SUB_PROMPT, {"steps": [{"run": "ls"}, "I have looked."]}],),
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
    ("pi-responses", "base"): REWRITTEN,
    ("pi-messages", "base"): REWRITTEN,
    ("codex", "base"): KEPT,
    ("claude", "base"): REWRITTEN,
    ("claude-bare", "base"): REWRITTEN,
    ("opencode", "base"): shape("mmm.", branches=2, roots="m.", arguments=2),
    ("qwen", "base"): REWRITTEN,
    ("gemini", "base"): REWRITTEN,
    # Two calls in one turn come back in one request.
    ("mini-tools", "parallel"): shape("mm"),
    ("codex", "parallel"): shape("mm"),
    ("claude-bare", "parallel"): shape("mm", arguments=1),
    ("pi-chat", "parallel"): shape("mm", arguments=1),
    # Cut JSON: told so and kept (mini, Codex), wrapped (Claude), repaired and run (pi), sampled again (Qwen).
    ("mini-tools", "bad-arguments"): shape("mmmm"),
    ("codex", "bad-arguments"): shape("mmmm"),
    ("claude-bare", "bad-arguments"): shape("mmmm", arguments=3),
    ("opencode", "bad-arguments"): shape("mmmm.", branches=2, roots="m.", arguments=3),
    ("qwen", "bad-arguments"): shape("mmmm", branches=2, arguments=2),
    ("pi-chat", "bad-arguments"): shape("mmmm", arguments=3),
    # A tool that is not there is an error result.
    ("mini-tools", "unknown-tool"): shape("mmm"),
    ("codex", "unknown-tool"): shape("mmm"),
    ("claude-bare", "unknown-tool"): shape("mmm", arguments=2),
    ("pi-chat", "unknown-tool"): shape("mmm", arguments=2),
    # Cut by length: our mini class says so, Codex dies, Claude goes on where it stopped.
    ("mini-tools", "length"): shape("mmm"),
    ("codex", "length"): shape("m", outcome="harness_crash, unsolved"),
    ("claude-bare", "length"): shape("mmm", arguments=1),
    ("pi-chat", "length"): shape("m", outcome=UNSOLVED),
    # Nothing said: Claude drops the turn and changes the user's text, so the next turn is a branch.
    ("mini-tools", "empty"): shape("mmm"),
    ("codex", "empty"): shape("m", outcome=UNSOLVED),
    ("claude-bare", "empty"): shape("mmm", branches=2, arguments=1),
    ("pi-chat", "empty"): shape("m", outcome=UNSOLVED),
    ("qwen", "empty"): shape("mmm", branches=2, arguments=1),
    # Only thought: as empty; Chat has no way back for a thought, so its absence is a matter of shape.
    ("mini-tools", "reasoning"): shape("mmm", shape=1),
    ("codex", "reasoning"): shape("m", outcome=UNSOLVED),
    ("claude-bare", "reasoning"): shape("mmm", branches=2, arguments=1),
    ("pi-chat", "reasoning"): shape("m", outcome=UNSOLVED),
    # What the gateway keeps from them: an engine's 500, and silence.
    ("mini-tools", "refused-once"): KEPT,
    ("codex", "refused-once"): KEPT,
    ("mini-tools", "pause"): KEPT,
    ("codex", "pause"): KEPT,
    ("claude-bare", "pause"): REWRITTEN,
    # The sub-agent's conversation is a root of its own, between two turns of its parent.
    ("claude", "sub-agent"): shape("mssmmm", branches=2, roots="ms", arguments=4),
}
QUICK = ("mini-tools", "codex")
"""They start in a second: all their cells are chosen."""
CHOSEN = {cell for cell in EXPECTED if cell[0] in QUICK} | {
    ("pi-chat", "base"),
    ("pi-responses", "base"),
    ("pi-messages", "base"),
    ("pi-chat", "bad-arguments"),
    ("claude", "sub-agent"),
    ("claude-bare", "base"),
    ("claude-bare", "bad-arguments"),
    ("claude-bare", "length"),
    ("claude-bare", "pause"),
    ("opencode", "base"),
    ("qwen", "bad-arguments"),
    ("gemini", "base"),
}
"""Together some three minutes on a quiet machine of two cores, beside what fetching the programs takes once."""
