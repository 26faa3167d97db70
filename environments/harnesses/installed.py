"""What all agent programs from a registry have in common: where they are in a sandbox, how they start and end.

From:  one small file a program (pi.py, codex.py, ...), each with its recipe, habits, arguments and files.
To:    Prepared: `/gyre/harness/start PROGRAM ARGUMENTS`, with the bundle of the program's packages and its runtime.
Holds: files are the same for every session (the start script writes address and key into them), so one bundle serves
       all rollouts; every program finds update checks and telemetry switched off.
"""

import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from environments.config import Section
from environments.harnesses.base import (
    HARNESS_DIRECTORY,
    Assignment,
    Ending,
    Habits,
    HarnessMissing,
    Prepared,
)
from environments.harnesses.bundles import BUNDLE_DIRECTORY, Recipe, require
from environments.models import Outcome
from environments.rendering.tool_text import write_tool_call

START = (Path(__file__).parent / "program_files" / "start").read_text()
EXAMPLE = Assignment(instruction="INSTRUCTION", session_key="KEY")
DONE = "Done."


class ProgramSettings(Section):
    """Of every program from a registry."""

    model_name: str = Field("gyre", min_length=1, description="Name of the model that the program is told.")
    context_tokens: int = Field(
        128_000, ge=1024, description="Context length that the program is told; some shorten their history by it."
    )
    output_tokens: int = Field(8192, ge=16, description="Longest answer that the program is told.")
    extra_arguments: list[str] = Field([], description="Further words of its command line.")
    environment: dict[str, str] = Field({}, description="Further environment variables.")


class InstalledProgram:
    """One program; subclasses say the rest."""

    name: str
    settings_class: type[Section] = ProgramSettings
    habits: Habits
    licence: str
    packages: Recipe
    command_name: str
    """As people type it."""
    shell_tool: tuple[str, str] = ("bash", "command")
    """Its tool that runs a shell command, and the parameter that takes it."""

    # ---- what a subclass says

    def program(self, bundle: Path) -> Sequence[str]:
        """Words that start it; paths inside the sandbox."""
        raise NotImplementedError

    def arguments(self, assignment: Assignment, settings: Any) -> Sequence[str]:
        raise NotImplementedError

    def environment(self, assignment: Assignment, settings: Any) -> Mapping[str, str]:
        return {}

    def home_files(self, settings: Any) -> Mapping[str, str]:
        """Text by path below $HOME; @BASE_URL@ and @SESSION_KEY@ are this session's."""
        return {}

    # ---- what they share

    @property
    def recipe(self) -> Recipe:
        return self.packages

    def version(self) -> str:
        return self.packages.version

    def launch_line(self, settings: Section) -> str:
        assert isinstance(settings, ProgramSettings)
        words = [self.command_name, *self.arguments(EXAMPLE, settings), *settings.extra_arguments]
        return " ".join(word if word == EXAMPLE.instruction else shlex.quote(word) for word in words)

    def prepare(self, assignment: Assignment, settings: Section) -> Prepared:
        assert isinstance(settings, ProgramSettings)
        bundle = require(self.packages)
        words = [*self.program(bundle.path), *self._placed(assignment, settings)]
        given = {
            "GYRE_BASE_URL": assignment.base_url,
            "GYRE_SESSION_KEY": assignment.session_key,
            "NO_COLOR": "1",
            "CI": "1",
            **self.environment(assignment, settings),
        }
        files = {f"home/{path}": text for path, text in self.home_files(settings).items()}
        return Prepared(
            command=(f"{HARNESS_DIRECTORY}/start", *words),
            environment={**given, **settings.environment},
            files={"start": START, **files},
            mounts=bundle.mounts,
        )

    def _placed(self, assignment: Assignment, settings: ProgramSettings) -> list[str]:
        """Further arguments go before the instruction, which is last where it is an argument of its own."""
        words = list(self.arguments(assignment, settings))
        at = len(words)
        if words and words[-1] == assignment.instruction:
            at = len(words) - 2 if len(words) > 1 and words[-2].startswith("-") else len(words) - 1
        return [*words[:at], *settings.extra_arguments, *words[at:]]

    def read_end(self, exit_code: int | None, output: str, logs_dir: Path) -> Ending:
        trouble = self.find_trouble(output)
        if exit_code == 0 and not trouble:
            return Ending(outcome=Outcome.COMPLETED)
        if exit_code == 0:
            return Ending(outcome=Outcome.HARNESS_CRASH, detail=f"{self.name} stopped: {trouble[:500]}")
        said = trouble or last_line(output)
        detail = f"{self.name} ended with exit code {exit_code}"
        return Ending(outcome=Outcome.HARNESS_CRASH, detail=f"{detail}: {said[:500]}" if said else f"{detail}.")

    def find_trouble(self, output: str) -> str:
        """What the program said about a failure that its exit code may hide; empty: nothing."""
        return ""

    def format_action(self, command: str) -> str:
        name, parameter = self.shell_tool
        return write_tool_call(name, orjson.dumps({parameter: command}).decode())

    def submit_action(self) -> str:
        return DONE


def in_bundle(path: str) -> str:
    return f"{BUNDLE_DIRECTORY}/{path}"


def find_native(name: str, bundle: Path, patterns: Iterable[str]) -> str:
    """The program's own executable for this machine, of the packages that npm chose. Raises HarnessMissing."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    for pattern in patterns:
        for path in sorted(bundle.glob(pattern.replace("{machine}", machine))):
            return in_bundle(path.relative_to(bundle).as_posix())
    raise HarnessMissing(f"{name} brings no executable for {platform.system()} on {platform.machine()}.")


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def json_lines(output: str) -> Iterable[dict[str, Any]]:
    """The objects of a stream of JSON lines, last first; other lines are skipped."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(value, dict):
                yield value
