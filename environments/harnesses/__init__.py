"""Agent programs, unmodified. A new one is one file here and one line in HARNESSES."""

from typing import Any

from pydantic import ValidationError

from environments.config import Section
from environments.harnesses.aider import Aider
from environments.harnesses.base import Assignment, BundleMount, Ending, HarnessMissing, HarnessProgram, Prepared
from environments.harnesses.claude_code import ClaudeCode
from environments.harnesses.codex import Codex
from environments.harnesses.command import Command
from environments.harnesses.gemini_cli import GeminiCli
from environments.harnesses.mini_swe_agent import MiniSweAgent
from environments.harnesses.mini_swe_agent_tools import MiniSweAgentTools
from environments.harnesses.opencode import Opencode
from environments.harnesses.pi import Pi
from environments.harnesses.qwen_code import QwenCode
from environments.models import Harness

PROGRAMS: tuple[HarnessProgram, ...] = (
    MiniSweAgent(),
    MiniSweAgentTools(),
    Pi(),
    Codex(),
    ClaudeCode(),
    Opencode(),
    QwenCode(),
    GeminiCli(),
    Aider(),
    Command(),
)
HARNESSES: dict[str, HarnessProgram] = {program.name: program for program in PROGRAMS}
BUILTIN_NAME = "mini-swe-agent"

__all__ = [
    "HARNESSES",
    "Assignment",
    "BundleMount",
    "Ending",
    "HarnessMissing",
    "HarnessProgram",
    "InvalidHarness",
    "Prepared",
    "check_settings",
    "ensure_builtin_harness",
    "get_program",
]


class InvalidHarness(ValueError):
    """A harness row that cannot be started; `problems` is [(field, message)], all at once."""

    def __init__(self, name: str, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__(
            f"Harness {name} cannot be used: " + "; ".join(f"{field}: {message}" for field, message in problems)
        )


def get_program(name: str) -> HarnessProgram:
    try:
        return HARNESSES[name]
    except KeyError:
        raise InvalidHarness(
            name, [("program", f"there is no program {name!r}; known: {', '.join(HARNESSES)}")]
        ) from None


def check_settings(program: str, settings: dict[str, Any]) -> Section:
    """The settings of a harness as its program's own class. Raises InvalidHarness with every wrong field."""
    try:
        return get_program(program).settings_class.model_validate(settings)
    except ValidationError as error:
        problems = [(".".join(map(str, detail["loc"])) or "settings", detail["msg"]) for detail in error.errors()]
        raise InvalidHarness(program, problems) from error


def ensure_builtin_harness() -> Harness:
    """The row of mini-swe-agent with its default settings and installed version."""
    harness, _ = Harness.objects.get_or_create(
        name=BUILTIN_NAME, defaults={"program": MiniSweAgent.name, "version": HARNESSES[MiniSweAgent.name].version()}
    )
    return harness
