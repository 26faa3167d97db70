"""mini-swe-agent 2.4.6 from PyPI, unmodified, with its text protocol and short templates of its own config file.

From:  environments.rollouts.
To:    a command line, its config file and (default) a model class without litellm, all in /gyre/harness.
Holds: nothing volatile in any message; an answer without exactly one action stays in the history (the program's
       own litellm class drops it), so every request extends the one before.
Cost:  0.2 s of CPU to start through its Python bindings, 0.4 s through its CLI, 3 s with litellm (docs/log.md).

`submit` is a two-line script on the PATH that prints the program's own end marker: it saves a small policy some
twenty tokens a rollout. The marker itself works too.
"""

import importlib.metadata
import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from environments.config import Section
from environments.harnesses.base import (
    HARNESS_DIRECTORY,
    Assignment,
    BundleMount,
    Ending,
    Habits,
    HarnessMissing,
    Prepared,
)
from environments.models import Outcome

PACKAGES_DIRECTORY = "/gyre/packages"
VENV_DIRECTORY = "/gyre/venv"
"""Where every sandbox shows the environment that runs Gyre."""
END_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT_SCRIPT = f"#!/bin/sh\necho {END_MARKER}\n"
FILES = Path(__file__).parent / "mini_files"
HIDDEN = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "OPENAI_API_BASE": "", "PYTHONPATH": "", "GYRE_PACKAGES": ""}
"""Set empty for the agent's own commands: the program's packages and the model are not theirs."""


class MiniSettings(Section):
    system_prompt: str = Field(
        "You work in a shell. Answer with one command in a ```bash block. When the task is done, run submit.",
        min_length=1,
        description="System message.",
    )
    format_error: str = Field(
        "Answer with exactly one command in a ```bash block.",
        min_length=1,
        description="User message after an answer without exactly one action.",
    )
    max_output_chars: int = Field(
        1000, ge=16, description="Of a command's output that the model sees; the middle is cut."
    )
    step_limit: int = Field(0, ge=0, description="Most turns; 0: only the run's budgets limit it.")
    max_format_errors: int = Field(3, ge=0, description="Ends after so many format errors in a row; 0: never.")
    command_timeout_s: int = Field(30, ge=1, description="Of one shell command.")
    model_class: Literal["gyre", "litellm"] = Field(
        "gyre", description="`litellm` is the program's own text-based class; it drops malformed answers."
    )
    entry: Literal["bindings", "cli"] = Field("bindings", description="How the program is started.")
    model_name: str = Field("gyre", min_length=1, description="Name of the model that the program is told.")

    @property
    def class_name(self) -> str:
        """The program's `model_class`."""
        return "litellm_textbased" if self.model_class == "litellm" else "gyre_mini_model.ChatModel"

    @property
    def protocol(self) -> dict[str, Any]:
        """What its model class needs to read actions."""
        return {"action_regex": r"```(?:bash|sh)\s*\n(.*?)\n```"}


class MiniSweAgent:
    name = "mini-swe-agent"
    settings_class: type[Section] = MiniSettings
    licence = "MIT"
    recipe = None
    habits = Habits(
        delivery="stream",
        retries="none by default (the relay waits); litellm: marked, then in a loop of its own without an end",
        history="kept as it was said; litellm: an answer without exactly one action is dropped",
    )

    def version(self) -> str:
        return _installed_version()

    def launch_line(self, settings: Section) -> str:
        assert isinstance(settings, MiniSettings)
        module = "gyre_mini_start config.yaml" if settings.entry == "bindings" else "minisweagent -c config.yaml -t"
        return f"python -m {module} INSTRUCTION"

    def prepare(self, assignment: Assignment, settings: Section) -> Prepared:
        assert isinstance(settings, MiniSettings)
        packages, mounts = _find_packages()
        return Prepared(
            command=_build_command(assignment.instruction, settings),
            environment=_build_environment(assignment, settings, packages),
            files={
                "config.yaml": json.dumps(build_config(settings), indent=1) + "\n",
                "gyre_mini_model.py": (FILES / "gyre_mini_model.py").read_text(),
                "gyre_mini_start.py": (FILES / "gyre_mini_start.py").read_text(),
                "bin/submit": SUBMIT_SCRIPT,
            },
            mounts=mounts,
        )

    def read_end(self, exit_code: int | None, output: str, logs_dir: Path) -> Ending:
        if exit_code == 0:
            return Ending(outcome=Outcome.COMPLETED)
        lines = [line for line in output.splitlines() if line.strip()]
        detail = f"mini-swe-agent ended with exit code {exit_code}"
        return Ending(outcome=Outcome.HARNESS_CRASH, detail=f"{detail}: {lines[-1][:500]}" if lines else f"{detail}.")

    def format_action(self, command: str) -> str:
        return f"```bash\n{command}\n```"

    def submit_action(self) -> str:
        return self.format_action("submit")


@cache
def _installed_version() -> str:
    try:
        return importlib.metadata.version("mini-swe-agent")
    except importlib.metadata.PackageNotFoundError as error:
        raise HarnessMissing("mini-swe-agent is not installed: pip install -r requirements.txt.") from error


def _find_packages() -> tuple[str, tuple[BundleMount, ...]]:
    """Where the program's packages are inside a sandbox, and the mount that brings them there, if one is needed."""
    spec = importlib.util.find_spec("minisweagent")
    if spec is None or spec.origin is None:
        raise HarnessMissing("mini-swe-agent is not installed: pip install -r requirements.txt.")
    directory = Path(spec.origin).resolve().parent.parent
    prefix = Path(sys.prefix).resolve()
    if directory.is_relative_to(prefix):
        return f"{VENV_DIRECTORY}/{directory.relative_to(prefix).as_posix()}", ()
    return PACKAGES_DIRECTORY, (BundleMount(source=directory, target=PACKAGES_DIRECTORY),)


def build_config(settings: MiniSettings) -> dict[str, Any]:
    """The program's own config file; written as JSON, which is YAML that the bindings read without a YAML parser."""
    agent: dict[str, Any] = {
        "system_template": _literal(settings.system_prompt),
        "instance_template": "{{task}}",
        "step_limit": settings.step_limit,
        "cost_limit": 0,
        "max_consecutive_format_errors": settings.max_format_errors,
    }
    if settings.entry == "cli":
        agent |= {"mode": "yolo", "confirm_exit": False}
    litellm = settings.model_class == "litellm"
    model: dict[str, Any] = {
        "model_class": settings.class_name,
        "model_name": f"openai/{settings.model_name}" if litellm else settings.model_name,
        "format_error_template": _literal(settings.format_error),
        "observation_template": _observation_template(settings.max_output_chars),
        **settings.protocol,
    }
    if litellm:
        model |= {"cost_tracking": "ignore_errors", "model_kwargs": {"timeout": 24 * 3600}}
    return {"agent": agent, "environment": {"timeout": settings.command_timeout_s, "env": HIDDEN}, "model": model}


def _literal(text: str) -> str:
    """Text that jinja leaves as it is."""
    return "{% raw %}" + text + "{% endraw %}" if "{" in text else text


def _observation_template(limit: int) -> str:
    """Return code and output, the middle of a long one cut; nothing that differs between two equal commands."""
    half = limit // 2
    return (
        "exit {{output.returncode}}"
        "{% if output.exception_info %}\n{{output.exception_info}}{% endif %}"
        "{% set text = output.output.strip() %}"
        "{% if text|length > " + str(limit) + " %}"
        "\n{{text[:" + str(half) + "]}}\n[cut]\n{{text[-" + str(half) + ":]}}"
        "{% elif text %}\n{{text}}{% endif %}"
    )


def _build_command(instruction: str, settings: MiniSettings) -> tuple[str, ...]:
    """-S: no site hooks of this machine's packages; they are found through PYTHONPATH or GYRE_PACKAGES. -P: a task's own
    numbers.py or json.py is not taken for the standard library's."""
    python = (f"{VENV_DIRECTORY}/bin/python", "-S", "-P")
    config = f"{HARNESS_DIRECTORY}/config.yaml"
    if settings.entry == "bindings":
        return (*python, "-m", "gyre_mini_start", config, instruction)
    return (
        *python, "-m", "minisweagent", "-c", config, "-t", instruction, "-o", "/logs/trajectory.json",
        "--exit-immediately",
    )  # fmt: skip


def _build_environment(assignment: Assignment, settings: MiniSettings, packages: str) -> dict[str, str]:
    paths = [HARNESS_DIRECTORY] if settings.entry == "bindings" else [HARNESS_DIRECTORY, packages]
    return {
        "OPENAI_BASE_URL": f"{assignment.base_url}/v1",
        "OPENAI_API_BASE": f"{assignment.base_url}/v1",
        "OPENAI_API_KEY": assignment.session_key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": "/logs/mini-swe-agent",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYDANTIC_DISABLE_PLUGINS": "__all__",
        "PYTHONPATH": ":".join(paths),
        "GYRE_PACKAGES": packages,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{HARNESS_DIRECTORY}/bin:/usr/local/bin:/usr/bin:/bin:{VENV_DIRECTORY}/bin",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
