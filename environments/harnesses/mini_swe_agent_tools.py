"""mini-swe-agent 2.4.6 with its tool protocol: one tool, `bash`, called as often as it likes in a turn.

As mini_swe_agent.py in all else. Its own litellm class drops a malformed turn; ours answers each of its calls with the
error, so that the history goes on.
"""

import json
from typing import Any, Literal

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import Habits
from environments.harnesses.mini_swe_agent import MiniSettings, MiniSweAgent
from environments.rendering.tool_text import write_tool_call


class MiniToolSettings(MiniSettings):
    system_prompt: str = Field(
        "You work in a shell. Call bash. When the task is done, run submit.", min_length=1,
        description="System message.",
    )  # fmt: skip
    format_error: str = Field(
        "Call the tool bash with a command.", min_length=1, description="Said after an answer without a valid call."
    )
    model_class: Literal["gyre", "litellm"] = Field(
        "gyre", description="`litellm` is the program's own tool-calling class; it drops malformed answers."
    )

    @property
    def class_name(self) -> str:
        return "litellm" if self.model_class == "litellm" else "gyre_mini_model.ToolModel"

    @property
    def protocol(self) -> dict[str, Any]:
        return {}


class MiniSweAgentTools(MiniSweAgent):
    name = "mini-swe-agent-tools"
    settings_class: type[Section] = MiniToolSettings
    habits = Habits(
        delivery="stream",
        retries=MiniSweAgent.habits.retries,
        history="kept byte for byte; litellm: a malformed turn is dropped, two user messages follow each other",
    )

    def format_action(self, command: str) -> str:
        return write_tool_call("bash", json.dumps({"command": command}))
