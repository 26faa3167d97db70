"""Read one task from a Harbor task directory, or say everything that is wrong with it.

From:  a directory with task.toml, instruction.md, environment/, tests/test.sh and (optional) solution/solve.sh.
To:    a HarborTask; environments.tasksets.catalog turns it into a Task row.
Holds: all problems of a task are reported at once, each by file and field; unknown fields are kept, not refused.
Never: runs anything, follows a link out of the directory.

The process sandbox has no image. Its convention: the files below `environment/work/` are the work tree in which
the agent starts (`/work` in the sandbox; the same files that a Dockerfile would `COPY work/ /work/`). A task with
`environment/work/`, or without Dockerfile and image, runs in the process sandbox; its Dockerfile is then optional.
Every other task needs an image, and the process sandbox refuses it by name.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from environments.egress.rules import parse_rule

COMPOSE_NAMES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
MAX_INSTRUCTION_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a task, and how to put it right."""

    file: str
    field: str = ""
    message: str
    remedy: str = ""
    rule: str = ""
    """Name of the rule that it breaks (docs/reference/harbor.md), for programs."""

    def __str__(self) -> str:
        place = f"{self.file}: {self.field}" if self.field else self.file
        return f"{place}: {self.message}" + (f" {self.remedy}" if self.remedy else "")


class InvalidTask(ValueError):
    """The directory is not a task that can be run here; `problems` says why, all at once."""

    def __init__(self, directory: Path, problems: list[Problem]) -> None:
        self.directory = directory
        self.problems = problems
        super().__init__(f"Task {directory.name} cannot be used: " + "; ".join(str(problem) for problem in problems))


class _Section(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class AgentSection(_Section):
    timeout_sec: float = Field(600.0, gt=0)


class VerifierSection(_Section):
    timeout_sec: float = Field(600.0, gt=0)
    env: dict[str, str] = {}


class EnvironmentSection(_Section):
    docker_image: str | None = None
    build_timeout_sec: float = Field(600.0, gt=0)
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    gpus: int = Field(0, ge=0)
    allow_internet: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names the sandbox may reach (docker only): `pypi.org`, `*.example.org`, `example.org:8443`."""

    @field_validator("allowed_hosts")
    @classmethod
    def check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            parse_rule(host)
        return hosts


class TaskToml(_Section):
    version: str = "1.0"
    metadata: dict[str, Any] = {}
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    directory: Path
    name: str
    instruction: str
    settings: TaskToml
    raw: dict[str, Any]
    """task.toml, whole."""
    image: str
    """Empty: the process sandbox can run it."""
    digest: str
    """sha256 over the path, executable bit and content of every file, in order of path."""

    @property
    def family(self) -> str:
        return str(self.settings.metadata.get("family") or self.settings.metadata.get("category") or "")[:60]

    @property
    def split(self) -> str:
        return str(self.settings.metadata.get("split") or "train")


def read_task(directory: Path) -> HarborTask:
    """Raises InvalidTask with every problem of the directory."""
    problems: list[Problem] = []
    raw = _read_toml(directory / "task.toml", problems)
    settings = _check_settings(raw, problems)
    instruction = _read_instruction(directory / "instruction.md", problems)
    _check_environment(directory, raw, problems)
    if not (directory / "tests" / "test.sh").is_file():
        problems.append(
            Problem(
                file="tests/test.sh",
                message="is missing.",
                remedy="It writes /logs/verifier/reward.txt.",
                rule="missing-tests",
            )
        )
    problems.extend(_check_links(directory))
    if problems:
        raise InvalidTask(directory, problems)
    return HarborTask(
        directory=directory,
        name=directory.name,
        instruction=instruction,
        settings=settings,
        raw=raw,
        image=needed_image(directory, settings),
        digest=digest_directory(directory),
    )


def needed_image(directory: Path, settings: TaskToml) -> str:
    """Name of the image without which the task cannot run; empty where the process sandbox can run it."""
    environment = directory / "environment"
    if (environment / "work").is_dir():
        return ""
    if settings.environment.docker_image:
        return settings.environment.docker_image
    return f"build:{directory.name}" if (environment / "Dockerfile").is_file() else ""


def start_tree(directory: Path) -> Path | None:
    """The files an agent starts with in a process sandbox; None: an empty work tree."""
    tree = directory / "environment" / "work"
    return tree if tree.is_dir() else None


def iter_files(directory: Path) -> Iterator[Path]:
    """Every file below, in order of its path as text; directories named __pycache__ do not count."""
    for path in sorted(directory.rglob("*"), key=lambda path: path.relative_to(directory).as_posix()):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def digest_directory(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in iter_files(directory):
        content = path.read_bytes()
        executable = "x" if path.stat().st_mode & 0o100 else "-"
        digest.update(f"{path.relative_to(directory).as_posix()}\0{executable}{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _read_toml(path: Path, problems: list[Problem]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        problems.append(
            Problem(
                file="task.toml",
                message="is missing.",
                remedy="An empty file takes every default.",
                rule="missing-task-toml",
            )
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(Problem(file="task.toml", message=f"is not valid TOML: {error}.", rule="invalid-toml"))
    except OSError as error:
        problems.append(Problem(file="task.toml", message=f"cannot be read: {error.strerror}.", rule="unreadable"))
    return {}


def _check_settings(raw: dict[str, Any], problems: list[Problem]) -> TaskToml:
    try:
        return TaskToml.model_validate({key: value for key, value in raw.items() if key != "steps"})
    except ValidationError as error:
        for detail in error.errors():
            field = ".".join(str(part) for part in detail["loc"])
            problems.append(
                Problem(
                    file="task.toml",
                    field=field,
                    message=f"{detail['msg']} (it is {str(detail['input'])[:80]!r}).",
                    rule="invalid-field",
                )
            )
    return TaskToml()


def _read_instruction(path: Path, problems: list[Problem]) -> str:
    try:
        if path.stat().st_size > MAX_INSTRUCTION_BYTES:
            problems.append(Problem(file="instruction.md", message="is larger than 1 MiB.", rule="too-large"))
            return ""
        text = path.read_text().strip()
    except FileNotFoundError:
        problems.append(Problem(file="instruction.md", message="is missing.", rule="missing-instruction"))
        return ""
    except (OSError, UnicodeDecodeError) as error:
        problems.append(
            Problem(file="instruction.md", message=f"cannot be read as UTF-8 text: {error}.", rule="unreadable")
        )
        return ""
    if not text:
        problems.append(Problem(file="instruction.md", message="is empty.", rule="missing-instruction"))
    return text


def _check_environment(directory: Path, raw: dict[str, Any], problems: list[Problem]) -> None:
    environment = directory / "environment"
    if not environment.is_dir():
        problems.append(
            Problem(
                file="environment",
                message="is missing.",
                remedy="An empty directory is an empty work tree.",
                rule="missing-environment",
            )
        )
    for name in COMPOSE_NAMES:
        if (environment / name).exists() or (directory / name).exists():
            message = "tasks with compose files are not supported."
            problems.append(Problem(file=f"environment/{name}", message=message, rule="compose"))
    section = raw.get("environment")
    services = section.get("services") or section.get("sidecars") if isinstance(section, dict) else None
    if services:
        problems.append(
            Problem(
                file="task.toml",
                field="environment.services",
                message="tasks with several containers are refused.",
                rule="several-containers",
            )
        )
    if raw.get("steps"):
        problems.append(
            Problem(
                file="task.toml",
                field="steps",
                message="tasks of several steps are not supported.",
                rule="several-steps",
            )
        )


def _check_links(directory: Path) -> list[Problem]:
    """Links that leave the task would make the digest lie and could expose the host's files."""
    root = directory.resolve()
    return [
        Problem(
            file=path.relative_to(directory).as_posix(),
            message="is a link that leaves the task's directory.",
            rule="link",
        )
        for path in directory.rglob("*")
        if path.is_symlink() and not path.resolve().is_relative_to(root)
    ]
