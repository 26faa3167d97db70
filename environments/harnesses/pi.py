"""pi 0.73.1 (npm), in any of three dialects; its prompt can be made short.

Seen: arguments re-serialised (and repaired where their JSON is cut), whitespace-only text dropped; on an overflow a side
call without tools asks for a summary and a new root goes on. Exit code 0 also after a fatal answer of the provider.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import Assignment, Habits, RoleRule
from environments.harnesses.bundles import Recipe
from environments.harnesses.installed import InstalledProgram, ProgramSettings, in_bundle, json_lines
from environments.harnesses.runtimes import NODE

APIS = {"chat": "openai-completions", "responses": "openai-responses", "messages": "anthropic-messages"}


class PiSettings(ProgramSettings):
    dialect: Literal["chat", "responses", "messages"] = Field("chat", description="Which provider it believes in.")
    system_prompt: str = Field("", description="In place of its own; empty: its own.")
    tools: list[str] = Field([], description="Names of the tools it may use, e.g. bash; empty: all.")
    reasoning: bool = Field(False, description="Whether it is told that the model reasons.")


class Pi(InstalledProgram):
    name = "pi"
    command_name = "pi"
    settings_class: type[Section] = PiSettings
    licence = "MIT"
    packages = Recipe(name="pi", version="0.73.1", npm=("@mariozechner/pi-coding-agent@0.73.1",))
    habits = Habits(
        dialects=("chat", "responses", "messages"),
        compacts=True,
        roles=(RoleRule(role="main-summary", system=r"context summarization assistant"),),
        retries="marked (x-stainless-retry-count 1, 2), then its own loop without a mark: 2, 4, 8 s",
        history="arguments re-serialised, cut JSON repaired and run; whitespace-only text dropped",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        return (NODE, in_bundle("node_modules/@mariozechner/pi-coding-agent/dist/cli.js"))

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        words = ["--print", "--mode", "json", "--no-session", "--provider", "gyre", "--model", settings.model_name]
        if settings.system_prompt:
            words += ["--system-prompt", settings.system_prompt]
        if settings.tools:
            words += ["--tools", ",".join(settings.tools)]
        return (*words, assignment.instruction)

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {
            "GYRE_KEY": assignment.session_key,
            "PI_CODING_AGENT_DIR": "/home/agent/.pi/agent",
            "PI_OFFLINE": "1",
            "PI_TELEMETRY": "0",
            "PI_SKIP_VERSION_CHECK": "1",
        }

    def home_files(self, settings: Any) -> Mapping[str, str]:
        model = {
            "id": settings.model_name,
            "name": settings.model_name,
            "reasoning": settings.reasoning,
            "input": ["text"],
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            "contextWindow": settings.context_tokens,
            "maxTokens": settings.output_tokens,
        }
        provider = {
            "baseUrl": "@BASE_URL@" if settings.dialect == "messages" else "@BASE_URL@/v1",
            "api": APIS[settings.dialect],
            "apiKey": "GYRE_KEY",
            "models": [model],
        }
        return {".pi/agent/models.json": json.dumps({"providers": {"gyre": provider}}, indent=1)}

    def find_trouble(self, output: str) -> str:
        """Its last assistant message says how the run ended; what follows a compaction is not printed."""
        for event in json_lines(output):
            if event.get("type") == "compaction_start":
                return ""
            message = event.get("message")
            if event.get("type") == "message_end" and isinstance(message, dict) and message.get("role") == "assistant":
                failed = message.get("stopReason") == "error"
                return str(message.get("errorMessage") or "the provider failed") if failed else ""
        return ""
