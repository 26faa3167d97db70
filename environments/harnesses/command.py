"""Any command line as an agent program: it finds the model and its instruction in the environment.

Given: OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, GYRE_MODEL, GYRE_INSTRUCTION,
and the instruction as the file /gyre/harness/instruction.md.
"""

from pathlib import Path

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import HARNESS_DIRECTORY, Assignment, Ending, Prepared
from environments.models import Outcome


class CommandSettings(Section):
    command: str = Field(min_length=1, description="Shell command line, run with `sh -c` in the work tree.")
    environment: dict[str, str] = Field({}, description="Further environment variables.")
    model_name: str = Field("gyre", min_length=1, description="Name of the model that the program is told.")


class Command:
    name = "command"
    settings_class: type[Section] = CommandSettings
    volatile: tuple[str, ...] = ()

    def version(self) -> str:
        return ""

    def prepare(self, assignment: Assignment, settings: Section) -> Prepared:
        assert isinstance(settings, CommandSettings)
        environment = {
            "OPENAI_BASE_URL": f"{assignment.base_url}/v1",
            "OPENAI_API_KEY": assignment.session_key,
            "ANTHROPIC_BASE_URL": assignment.base_url,
            "ANTHROPIC_API_KEY": assignment.session_key,
            "GYRE_MODEL": settings.model_name,
            "GYRE_INSTRUCTION": assignment.instruction,
            "GYRE_INSTRUCTION_FILE": f"{HARNESS_DIRECTORY}/instruction.md",
        }
        return Prepared(
            command=("sh", "-c", settings.command),
            environment=environment | settings.environment,
            files={"instruction.md": assignment.instruction},
        )

    def read_end(self, exit_code: int | None, output: str, logs_dir: Path) -> Ending:
        if exit_code == 0:
            return Ending(outcome=Outcome.COMPLETED)
        return Ending(outcome=Outcome.HARNESS_CRASH, detail=f"The command ended with exit code {exit_code}.")

    def format_action(self, command: str) -> str:
        return command

    def submit_action(self) -> str:
        return "exit"
