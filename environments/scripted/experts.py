"""A scripted expert: plays a task's own solution, one shell command a turn, then submits.

From:  the gateway, for an engine whose base_url is `expert://<harness program>`.
To:    the text of one answer; the gateway encodes and records it like a sampled one, without logprobs.
Holds: the answer depends on the task and the turn alone, so a call that is repeated gets the same answer.
"""

from functools import lru_cache
from pathlib import Path

from environments.harnesses import get_program


class NoSolution(RuntimeError):
    """The task has no solution to play."""


def expert_turn(task_directory: Path, program: str, turn: int) -> str:
    """The expert's answer number `turn` (0-based); from the end of the solution on, it submits."""
    harness = get_program(program)
    commands = solution_commands(task_directory)
    return harness.format_action(commands[turn]) if turn < len(commands) else harness.submit_action()


@lru_cache(maxsize=4096)
def solution_commands(task_directory: Path) -> tuple[str, ...]:
    """The commands of solution/solve.sh. Raises NoSolution."""
    path = task_directory / "solution" / "solve.sh"
    try:
        return tuple(split_commands(path.read_text()))
    except OSError as error:
        raise NoSolution(f"{path} cannot be read ({error.strerror}); an expert needs it.") from error


def split_commands(script: str) -> list[str]:
    """One command a line; a line that ends with a backslash goes on, comments and `set` lines do not count."""
    commands: list[str] = []
    pending = ""
    for line in script.splitlines():
        text = pending + line
        if line.endswith("\\"):
            pending = text + "\n"
            continue
        pending = ""
        stripped = text.strip()
        if stripped and not stripped.startswith("#") and not stripped.startswith("set -"):
            commands.append(stripped)
    return commands
