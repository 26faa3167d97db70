"""Qwen Code 0.15.10 (npm), over OpenAI Chat.

Seen: an answer with invalid arguments or cut by its length is thrown away and the same prompt sampled again with
max_tokens 64000; any cut of a stream ends the run; after a compaction the next answer is merged into a prefilled
assistant message. Its memory extraction (a hidden sub-agent) is switched off.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.harnesses.base import Assignment, Habits, RoleRule
from environments.harnesses.bundles import Recipe
from environments.harnesses.installed import InstalledProgram, in_bundle
from environments.harnesses.runtimes import NODE


class QwenCode(InstalledProgram):
    name = "qwen-code"
    command_name = "qwen"
    shell_tool = ("run_shell_command", "command")
    licence = "Apache-2.0"
    packages = Recipe(name="qwen-code", version="0.15.10", npm=("@qwen-code/qwen-code@0.15.10",))
    habits = Habits(
        compacts=True,
        roles=(
            RoleRule(role="main-summary", system=r"component that summarizes internal chat history"),
            RoleRule(role="side", system=r"memory extraction subagent"),
        ),
        retries="marked (x-stainless-retry-count 1 to 3) inside an unmarked outer loop of 7",
        history="arguments re-serialised, reasoning trimmed, empty arguments drop the call; a turn with invalid "
        "arguments is thrown away and sampled again",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        return (NODE, in_bundle("node_modules/@qwen-code/qwen-code/cli.js"))

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        return ("--auth-type", "openai", "--yolo", "-m", settings.model_name, "-p", assignment.instruction)

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {
            "OPENAI_API_KEY": assignment.session_key,
            "OPENAI_BASE_URL": f"{assignment.base_url}/v1",
            "OPENAI_MODEL": settings.model_name,
        }

    def home_files(self, settings: Any) -> Mapping[str, str]:
        quiet = {
            "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        }
        return {".qwen/settings.json": json.dumps(quiet, indent=1)}

    def find_trouble(self, output: str) -> str:
        return next((line for line in output.splitlines() if line.startswith("[API Error:")), "")
