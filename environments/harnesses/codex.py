"""Codex 0.171.0 (npm, its own executable), over OpenAI Responses.

Seen: arguments come back byte for byte; the base prompt are developer items, no instructions; sub-agents run beside their
parent; a compaction goes by the usage it is told and is marked in its metadata; an overflow ends the run; it hangs up
right after the terminal event, which is no abort.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import Assignment, Habits, RoleRule
from environments.harnesses.bundles import Recipe
from environments.harnesses.installed import InstalledProgram, ProgramSettings, find_native, json_lines

FEATURES = ("plugins", "apps", "remote_plugin", "goals")


class CodexSettings(ProgramSettings):
    sub_agents: bool = Field(False, description="Whether it has tools to start sub-agents (four more tools).")
    compact_at_tokens: int = Field(
        0, ge=0, description="Usage at which it shortens its history; 0: never (an overflow then ends the run)."
    )


class Codex(InstalledProgram):
    name = "codex"
    command_name = "codex"
    settings_class: type[Section] = CodexSettings
    shell_tool = ("exec_command", "cmd")
    licence = "Apache-2.0"
    packages = Recipe(name="codex", version="0.171.0", npm=("@openai/codex@0.171.0",))
    habits = Habits(
        dialects=("responses",),
        roles=(RoleRule(role="main-summary", asked=r"CONTEXT CHECKPOINT COMPACTION"),),
        retries="never marked, a new connection each, metadata in another order: 5 tries, repeated 5 times",
        history="kept byte for byte; after a compaction only the summary and the user's own items",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        return (find_native(self.name, bundle, ["node_modules/@openai/codex-linux-{machine}/vendor/*/bin/codex"]),)

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        return (
            "exec", "--json", "--ephemeral", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            "-C", "/work", "-m", settings.model_name, "--", assignment.instruction,
        )  # fmt: skip

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {"GYRE_KEY": assignment.session_key, "CODEX_HOME": "/home/agent/.codex"}

    def home_files(self, settings: Any) -> Mapping[str, str]:
        features = dict.fromkeys(FEATURES, False) | {"multi_agent": settings.sub_agents}
        compact = settings.compact_at_tokens
        lines = [
            f"model = {json.dumps(settings.model_name)}",
            'model_provider = "gyre"',
            'approval_policy = "never"',
            'sandbox_mode = "danger-full-access"',
            "check_for_update_on_startup = false",
            f"model_context_window = {settings.context_tokens}",
            *([f"model_auto_compact_token_limit = {compact}"] if compact else []),
            "[features]",
            *(f"{name} = {json.dumps(value)}" for name, value in features.items()),
            "[model_providers.gyre]",
            'name = "gyre"',
            'base_url = "@BASE_URL@/v1"',
            'env_key = "GYRE_KEY"',
            'wire_api = "responses"',
            "stream_idle_timeout_ms = 86400000",
            "supports_websockets = false",
            "[analytics]",
            "enabled = false",
        ]
        return {".codex/config.toml": "\n".join(lines) + "\n"}

    def find_trouble(self, output: str) -> str:
        for event in json_lines(output):
            if event.get("type") == "turn.completed":
                return ""
            if event.get("type") in ("turn.failed", "error"):
                error = event.get("error")
                return str((error or {}).get("message") if isinstance(error, dict) else event.get("message") or error)
        return ""
