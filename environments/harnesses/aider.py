"""aider 0.86.2 (pip, apart from Gyre's own packages), over OpenAI Chat: one request, edits as text, no tools.

Seen: few-shot turns before the prompt; it ends after one answer and says 0 after a fatal answer of the provider too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.harnesses.base import Assignment, Habits
from environments.harnesses.bundles import SITE_PACKAGES, Recipe
from environments.harnesses.installed import InstalledProgram
from environments.harnesses.runtimes import PYTHON

FATAL = ("litellm.", "The API provider", "Token limit", "token limit", "ContextWindowExceededError")


class NoShell(RuntimeError):
    """aider edits files by text; it runs no command that an expert gives it."""


class Aider(InstalledProgram):
    name = "aider"
    command_name = "aider"
    licence = "Apache-2.0"
    packages = Recipe(name="aider", version="0.86.2", pip=("aider-chat==0.86.2",))
    habits = Habits(
        delivery="stream",
        retries="marked (x-stainless-retry-count 1)",
        history="one request a run: nothing is sent back",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        """-S: its own packages and no others. -P: none of the task's."""
        return (PYTHON, "-S", "-P", "-m", "aider")

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        model = f"openai/{settings.model_name}"
        return (
            "--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes",
            "--no-pretty", "--model", model, "--weak-model", model, "--edit-format", "diff",
            "--message", assignment.instruction,
        )  # fmt: skip

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {
            "PYTHONPATH": SITE_PACKAGES,
            "OPENAI_API_BASE": f"{assignment.base_url}/v1",
            "OPENAI_API_KEY": assignment.session_key,
            "AIDER_ANALYTICS": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def find_trouble(self, output: str) -> str:
        return next((line for line in output.splitlines() if line.startswith(FATAL)), "")

    def format_action(self, command: str) -> str:
        raise NoShell("aider has no tool that runs a command; choose another harness for demonstrations.")
