"""What Gyre knows of an agent program: how to start it, point it at the gateway, and read how it ended.

From:  environments.rollouts (prepare, read_end), environments.scripted.experts (format_action, submit_action).
To:    one small file a program in this package; the registry is environments.harnesses.HARNESSES.
Holds: the program itself is never modified; all that we add are files in /gyre/harness and environment variables.
Never: touches the database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from environments.config import Section
from environments.models import Outcome

HARNESS_DIRECTORY = "/gyre/harness"
"""Where `Prepared.files` lie in the sandbox, read-only."""
RELAY_ADDRESS = "http://127.0.0.1:8100"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a program is told: its work, and where the model is."""

    instruction: str
    session_key: str
    model_name: str = "gyre"

    @property
    def base_url(self) -> str:
        """For Anthropic and Gemini clients; OpenAI clients append /v1."""
        return f"{RELAY_ADDRESS}/s/{self.session_key}"


@dataclass(frozen=True, kw_only=True)
class BundleMount:
    """A host path that the program needs, visible read-only at `target` in the sandbox."""

    source: Path
    target: str


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One start of a program."""

    command: Sequence[str]
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    """Text by path below /gyre/harness; a file whose text begins with `#!` is executable."""
    mounts: Sequence[BundleMount] = ()


@dataclass(frozen=True, kw_only=True)
class Ending:
    outcome: Outcome
    detail: str = ""
    """For people: what the program said about its end; empty where there is nothing to say."""


class HarnessProgram(Protocol):
    name: str
    settings_class: type[Section]
    volatile: tuple[str, ...]
    """Regular expressions of spans that change from request to request and mean nothing."""

    def version(self) -> str:
        """Of the installed program; raises HarnessMissing with the remedy."""

    def prepare(self, assignment: Assignment, settings: Section) -> Prepared: ...

    def read_end(self, exit_code: int | None, output: str, logs_dir: Path) -> Ending:
        """Why a program that ended by itself did so. exit_code None: killed."""

    def format_action(self, command: str) -> str:
        """The answer with which an expert runs one shell command."""

    def submit_action(self) -> str:
        """The answer with which an expert says that it is done."""


class HarnessMissing(RuntimeError):
    """The agent program is not installed here."""
