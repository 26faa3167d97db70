"""Claude Code 2.1.197 (npm, its own executable), over Anthropic Messages; `bare` cuts it to three tools.

Seen: our call ids always come back, arguments do not (keys reordered, values coerced, a leading `cd` and trailing blanks
removed); a cut after the first block ends the run; sub-agents send identical bodies that only a header tells apart.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import Assignment, Habits, RoleRule
from environments.harnesses.bundles import Recipe
from environments.harnesses.installed import InstalledProgram, ProgramSettings, find_native, json_lines

QUIET = (
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", "DISABLE_AUTOUPDATER",
    "IS_SANDBOX",
)  # fmt: skip
MODELS = (
    "ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip


class ClaudeCodeSettings(ProgramSettings):
    bare: bool = Field(False, description="Three tools and a system prompt of two lines: for a small policy.")
    max_turns: int = Field(200, ge=1, description="Most turns before it stops.")
    model_name: str = Field(
        "gyre", min_length=1, description="Name of the model that it is told; a known name selects that model's prompt."
    )


class ClaudeCode(InstalledProgram):
    name = "claude-code"
    command_name = "claude"
    settings_class: type[Section] = ClaudeCodeSettings
    shell_tool = ("Bash", "command")
    licence = "proprietary (Anthropic's terms)"
    packages = Recipe(name="claude-code", version="2.1.197", npm=("@anthropic-ai/claude-code@2.1.197",))
    habits = Habits(
        dialects=("messages",),
        volatile=(r"x-anthropic-billing-header: [^\n]*", r"<total_tokens>[^<]*</total_tokens>"),
        compacts=True,
        roles=(RoleRule(role="main-summary", asked=r"CRITICAL: Respond with TEXT ONLY"),),
        retries="identical bodies, x-stainless-retry-count always 0: up to 10, 0.6 s doubling to 39 s",
        history="call ids kept; arguments reordered, coerced and rewritten; trailing blanks of written files removed; "
        "empty answers dropped with the user's text changed",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        path = "node_modules/@anthropic-ai/claude-code-linux-{machine}/claude"
        return (find_native(self.name, bundle, [path]),)

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        words = [
            "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions",
            "--max-turns", str(settings.max_turns), "--model", settings.model_name,
        ]  # fmt: skip
        return (*words, *(["--bare"] if settings.bare else []), "--", assignment.instruction)

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {
            "ANTHROPIC_BASE_URL": assignment.base_url,
            "ANTHROPIC_API_KEY": assignment.session_key,
            "CLAUDE_CONFIG_DIR": "/home/agent/.claude",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            **dict.fromkeys(QUIET, "1"),
            **dict.fromkeys(MODELS, settings.model_name),
        }

    def find_trouble(self, output: str) -> str:
        """Its result line; the turn limit that we set is an end like any other."""
        for event in json_lines(output):
            if event.get("type") == "result":
                failed = event.get("is_error") and event.get("subtype") != "error_max_turns"
                return str(event.get("result") or event.get("subtype")) if failed else ""
        return ""
