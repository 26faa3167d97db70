"""Any program as a harness, by a template of its command line: what a person types into the browser.

Given: OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, GOOGLE_GEMINI_BASE_URL, GEMINI_API_KEY,
GYRE_MODEL, GYRE_INSTRUCTION, the instruction as the file /gyre/harness/instruction.md, and in `command` and `files` the
places @BASE_URL@, @SESSION_KEY@ and @MODEL@. `files` are written below the program's private home before it starts.
"""

from pathlib import Path

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import HARNESS_DIRECTORY, Assignment, Ending, Habits, Prepared
from environments.harnesses.installed import START
from environments.models import Outcome


class CommandSettings(Section):
    command: str = Field(
        min_length=1,
        description="Shell command line, run with `sh -c` in the work tree; @BASE_URL@, @SESSION_KEY@ and @MODEL@ are "
        "put in, the instruction is $GYRE_INSTRUCTION.",
    )
    environment: dict[str, str] = Field({}, description="Further environment variables; the same places are put in.")
    files: dict[str, str] = Field({}, description="Text of files below $HOME, by path; the same places are put in.")
    model_name: str = Field("gyre", min_length=1, description="Name of the model that the program is told.")


class Command:
    name = "command"
    settings_class: type[Section] = CommandSettings
    licence = ""
    recipe = None
    habits = Habits(
        dialects=("chat", "responses", "messages", "gemini"),
        retries="not known: the program is the user's",
        history="not known: the program is the user's",
    )

    def version(self) -> str:
        return ""

    def launch_line(self, settings: Section) -> str:
        assert isinstance(settings, CommandSettings)
        return settings.command

    def prepare(self, assignment: Assignment, settings: Section) -> Prepared:
        assert isinstance(settings, CommandSettings)
        given = {
            "OPENAI_BASE_URL": f"{assignment.base_url}/v1",
            "OPENAI_API_KEY": assignment.session_key,
            "ANTHROPIC_BASE_URL": assignment.base_url,
            "ANTHROPIC_API_KEY": assignment.session_key,
            "GOOGLE_GEMINI_BASE_URL": assignment.base_url,
            "GEMINI_API_KEY": assignment.session_key,
            "GYRE_BASE_URL": assignment.base_url,
            "GYRE_SESSION_KEY": assignment.session_key,
            "GYRE_MODEL": settings.model_name,
            "GYRE_INSTRUCTION": assignment.instruction,
            "GYRE_INSTRUCTION_FILE": f"{HARNESS_DIRECTORY}/instruction.md",
        }

        def fill(text: str) -> str:
            for place, value in (
                ("@BASE_URL@", assignment.base_url),
                ("@SESSION_KEY@", assignment.session_key),
                ("@MODEL@", settings.model_name),
            ):
                text = text.replace(place, value)
            return text

        further = {name: fill(value) for name, value in settings.environment.items()}
        files = {f"home/{path}": text.replace("@MODEL@", settings.model_name) for path, text in settings.files.items()}
        return Prepared(
            command=(f"{HARNESS_DIRECTORY}/start", "sh", "-c", fill(settings.command)),
            environment=given | further,
            files={"start": START, "instruction.md": assignment.instruction, **files},
        )

    def read_end(self, exit_code: int | None, output: str, logs_dir: Path) -> Ending:
        if exit_code == 0:
            return Ending(outcome=Outcome.COMPLETED)
        return Ending(outcome=Outcome.HARNESS_CRASH, detail=f"The command ended with exit code {exit_code}.")

    def format_action(self, command: str) -> str:
        return command

    def submit_action(self) -> str:
        return "exit"
