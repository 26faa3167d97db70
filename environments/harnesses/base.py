"""What Gyre knows of an agent program: how to start it, point it at the gateway, and read how it ended.

From:  environments.rollouts (prepare, read_end), environments.scripted.experts (format_action, submit_action).
To:    one small file a program in this package; the registry is environments.harnesses.HARNESSES.
Holds: the program itself is never modified; all that we add are files in /gyre/harness and environment variables.
Never: touches the database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from environments.config import Section
from environments.models import Outcome

if TYPE_CHECKING:
    from environments.harnesses.bundles import Recipe

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


@dataclass(frozen=True, kw_only=True)
class RoleRule:
    """What a request is for, where the generic rule (environments.gateway.roles) cannot tell. First match counts."""

    role: Literal["main", "main-summary", "sub-agent", "sub-summary", "side"]
    system: str = ""
    """Regular expression that the system text has; empty: any."""
    asked: str = ""
    """Regular expression that the last user text has; empty: any."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a program behaves at the wire: seen by running its pinned version, held by the contract matrix."""

    dialects: tuple[str, ...] = ("chat",)
    delivery: Literal["whole", "stream"] = "whole"
    """`stream` only where a cut neither ends the program nor repeats a tool; else an answer is sent in one piece."""
    volatile: tuple[str, ...] = ()
    """Regular expressions of spans that change from request to request and mean nothing."""
    compacts: bool = False
    """It shortens its history when told of a context overflow, so an overflow is not the end."""
    roles: tuple[RoleRule, ...] = ()
    retries: str = ""
    """For people: how it repeats a request, and whether it says so."""
    history: str = ""
    """For people: what it does to our answers when it sends them back."""
    not_replayable: str = ""
    """Why a lost session cannot be answered from the record; empty: it can."""


class HarnessProgram(Protocol):
    name: str
    settings_class: type[Section]
    habits: Habits
    licence: str
    """As its package states it; empty: the user's own program."""

    @property
    def recipe(self) -> "Recipe | None":
        """What the registries install; None: it comes with Gyre's own requirements, or is the user's."""

    def version(self) -> str:
        """Of the pinned program; raises HarnessMissing with the remedy."""

    def launch_line(self, settings: Section) -> str:
        """For people: how it is started."""

    def prepare(self, assignment: Assignment, settings: Section) -> Prepared: ...

    def read_end(self, exit_code: int | None, output: str, logs_dir: Path) -> Ending:
        """Why a program that ended by itself did so. exit_code None: killed."""

    def format_action(self, command: str) -> str:
        """The answer with which an expert runs one shell command."""

    def submit_action(self) -> str:
        """The answer with which an expert says that it is done."""


class HarnessMissing(RuntimeError):
    """The agent program is not installed here."""
