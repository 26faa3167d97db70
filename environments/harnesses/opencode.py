"""opencode 1.18.33 (npm, its own executable), over OpenAI Chat.

Seen: a title call beside the first turn; unknown tools and invalid arguments come back under the name `invalid` with our
call id; a cut stream leaves a broken turn in its history and runs tools twice, so answers are delivered whole. It ends
with exit code 1 after an overflow from which it recovered.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.harnesses.base import Assignment, Habits, RoleRule
from environments.harnesses.bundles import Recipe
from environments.harnesses.installed import InstalledProgram, find_native

HOME = "/home/agent"


class Opencode(InstalledProgram):
    name = "opencode"
    command_name = "opencode"
    licence = "MIT"
    packages = Recipe(name="opencode", version="1.18.33", npm=("opencode-ai@1.18.33",))
    habits = Habits(
        compacts=True,
        roles=(
            RoleRule(role="side", system=r"You are a title generator"),
            RoleRule(role="main-summary", system=r"context summarization agent"),
        ),
        retries="identical bodies, never marked: 2, 5, 9, 16, 33 s",
        history="arguments re-serialised; unknown tools and invalid arguments renamed to `invalid`",
    )

    def program(self, bundle: Path) -> Sequence[str]:
        """The build for older processors runs everywhere."""
        names = ("opencode-linux-{machine}-baseline", "opencode-linux-{machine}")
        return (find_native(self.name, bundle, [f"node_modules/{name}/bin/opencode" for name in names]),)

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        model = f"gyre/{settings.model_name}"
        return ("run", "-m", model, "--dangerously-skip-permissions", "--", assignment.instruction)

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {
            "XDG_CONFIG_HOME": f"{HOME}/.config",
            "XDG_DATA_HOME": f"{HOME}/.local/share",
            "XDG_CACHE_HOME": f"{HOME}/.cache",
            "XDG_STATE_HOME": f"{HOME}/.local/state",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        }

    def home_files(self, settings: Any) -> Mapping[str, str]:
        limit = {"context": settings.context_tokens, "output": settings.output_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "gyre",
            "options": {"baseURL": "@BASE_URL@/v1", "apiKey": "@SESSION_KEY@"},
            "models": {settings.model_name: {"name": settings.model_name, "limit": limit}},
        }
        config = {
            "provider": {"gyre": provider},
            "model": f"gyre/{settings.model_name}",
            "small_model": f"gyre/{settings.model_name}",
            "autoupdate": False,
            "share": "disabled",
        }
        return {".config/opencode/opencode.json": json.dumps(config, indent=1)}
