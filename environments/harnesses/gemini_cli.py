"""Gemini CLI 0.61.0 (npm), over Gemini generateContent.

Seen: thoughts are dropped from its history; any cut of a stream ends the run; a comment as keep-alive destroys the answer
(the dialect sends blank lines); an empty answer is asked for again with the last user message changed.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.harnesses.base import Assignment, Habits
from environments.harnesses.bundles import Recipe
from environments.harnesses.installed import InstalledProgram, in_bundle
from environments.harnesses.runtimes import NODE


class GeminiCli(InstalledProgram):
    name = "gemini-cli"
    command_name = "gemini"
    shell_tool = ("run_shell_command", "command")
    licence = "Apache-2.0"
    packages = Recipe(name="gemini-cli", version="0.61.0", npm=("@google/gemini-cli@0.61.0",))
    habits = Habits(
        dialects=("gemini",),
        retries="identical bodies, never marked: 4, 9, 23 s and on",
        history="thoughts dropped, integer-like keys of arguments moved to the front; results carry a process id",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        return (NODE, in_bundle("node_modules/@google/gemini-cli/bundle/gemini.js"))

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        return ("--yolo", "-m", settings.model_name, "-p", assignment.instruction)

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {
            "GOOGLE_GEMINI_BASE_URL": assignment.base_url,
            "GEMINI_API_KEY": assignment.session_key,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }

    def home_files(self, settings: Any) -> Mapping[str, str]:
        quiet = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
        }
        return {".gemini/settings.json": json.dumps(quiet, indent=1)}
