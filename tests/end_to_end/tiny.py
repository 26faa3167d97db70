"""The whole of Gyre as real processes, small enough for a test: a random model of some 30,000 parameters, the scripted
engine, tasks of a few families, and the real mini-swe-agent.

From:  tests that ask for `tiny_system` (tests.end_to_end.conftest and tests.drills.conftest).
To:    TinySystem: start a run, look at its rows, find its processes.
Holds: services of its own in a directory of its own; this process's Django points at them while the system runs, and
       back at the tests' own services afterwards. The scripted engine writes every prompt and token to `audit`.
"""

import contextlib
import copy
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import psutil
from django.conf import settings
from django.db import connections
from django.test import override_settings

from environments.harnesses import ensure_builtin_harness
from environments.models import Model, Task
from environments.rendering.scripted import END, VOCABULARY
from environments.tasksets import generate_taskset
from gyre_web.celery import app as celery_app
from gyre_web.up import supervisor as supervisor_module
from gyre_web.up.ports import free_port
from gyre_web.up.supervisor import Supervisor, running_system
from training.models import Attempt
from training.services import check_config, start_run

T = TypeVar("T")
FAMILIES = ("create", "copy", "mkdir")
PATIENCE_S = 240.0
"""For a whole run; a bound against hanging, not a figure: the machine may be busy."""


@dataclass(kw_only=True)
class TinySystem:
    supervisor: Supervisor
    root: Path
    num_runs: int = field(default=0)

    @property
    def audit(self) -> Path:
        return self.root / "audit.jsonl"

    @property
    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    def start(self, **changes: Any) -> Attempt:
        """A run of the tiny recipe; changes: sections of the run config."""
        self.num_runs += 1
        config, errors = check_config(recipe() | changes)
        assert config is not None, errors
        return start_run(name=f"tiny-{self.num_runs}", config=config)

    def wait_for(self, condition: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
        deadline = time.monotonic() + timeout_s
        while not (value := quietly(condition)):
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain: {what}\n{tail(self.log)}")
            time.sleep(0.02)
        return value

    def wait_until_over(self, attempt: Attempt) -> Attempt:
        def over() -> Attempt | None:
            found = Attempt.objects.get(pk=attempt.pk)
            return found if found.is_over else None

        return self.wait_for(over, "the attempt ends by itself")

    def pid_of(self, part: str) -> int:
        return self.supervisor.running[part].process.pid

    def processes(self) -> list[psutil.Process]:
        """Every process that carries this system's directory: parts, engines, trainers, services, sandboxes."""
        word = str(self.root)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = [*process.cmdline(), *process.environ().values()]
                is_here = any(word in each for each in words)
                if is_here and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    found.append(process)
        return found


def quietly(condition: Callable[[], T | None]) -> T | None:
    """None while the database is away, as in a drill; the connection is not kept."""
    from django.db import InterfaceError, OperationalError

    try:
        return condition()
    except (OperationalError, InterfaceError):
        return None
    finally:
        connections["default"].close()


def tail(text: str, num_lines: int = 60) -> str:
    return "\n".join(text.splitlines()[-num_lines:])


def recipe() -> dict[str, Any]:
    return {
        "model": {"name": "tiny"},
        "tasks": {
            "mixture": [{"taskset": "tiny", "families": list(FAMILIES)}],
            "groups_per_step": 2,
            "rollouts_per_group": 3,
        },
        "harness": {"max_running": 6},
        "sampling": {"max_tokens": 300},
        "budgets": {"max_sampled_tokens": 1200, "max_context_tokens": 3000},
        "warm_start": {"demonstrations": 8},
        "optimization": {"steps": 2, "precision": "fp32"},
        "engine": {"kind": "scripted", "max_context_tokens": 3000},
        "evaluation": {"tasks": 4},
    }


@contextlib.contextmanager
def tiny_system(*, tokens_per_s: float = 0.0) -> Iterator[TinySystem]:
    """Started, with model, tasks and harness in its catalog; nothing of it is left afterwards, whatever happens."""
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/var/tmp"))  # short: it holds sockets
    root.chmod(0o755)
    environment = {
        "GYRE_SCRIPTED_SCRIPT": str(root / "script.json"),
        "GYRE_SCRIPTED_AUDIT": str(root / "audit.jsonl"),
        "GYRE_SCRIPTED_TOKENS_PER_S": str(tokens_per_s),
    }
    directories = override_settings(
        DATA_DIR=root / "data", RUNTIME_DIR=root / "rt", GATEWAY_SOCKET_DIR=root / "rt" / "gateway"
    )
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        stack.enter_context(directories)
        stack.enter_context(services_kept())
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(patch.object(supervisor_module, "service_directory", lambda _: root / "services"))
        supervisor = stack.enter_context(running_system(port=free_port("127.0.0.1", 8400), log_path=root / "log"))
        system = TinySystem(supervisor=supervisor, root=root)
        fill_catalog(root)
        yield system


@contextlib.contextmanager
def services_kept() -> Iterator[None]:
    """Whatever the block makes Django point at, it points at the tests' own services afterwards."""
    database = copy.deepcopy(connections.settings["default"])
    broker = celery_app.conf.broker_url
    names = ("DATABASE_URL", "REDIS_URL")
    kept = {name: getattr(settings, name) for name in (*names, "CHANNEL_LAYERS")}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    try:
        with patch.dict(os.environ, environment, clear=True):
            yield
    finally:
        connections["default"].close()
        connections.settings["default"].update(database)
        connections["default"].settings_dict.update(database)
        for name, value in kept.items():
            setattr(settings, name, value)
        celery_app.conf.broker_url = broker


def fill_catalog(root: Path) -> None:
    save_model(root / "model")
    Model.objects.create(name="tiny", path=str(root / "model"), renderer="scripted", context_length=4096)
    generate_taskset(name="tiny", seed=1, num_train=96, num_heldout=48)
    ensure_builtin_harness()
    (root / "script.json").write_text(json.dumps(build_script()))
    connections["default"].close()


def save_model(path: Path) -> None:
    """A random Llama over the scripted renderer's byte ids."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY + 5,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(path)  # type: ignore[no-untyped-call]
    for file in path.iterdir():
        file.chmod(0o644)


def build_script() -> list[tuple[str, str | list[str]]]:
    """What the engine says: to a task in turn its solution and something useless, to any result that it submits."""
    script: list[tuple[str, str | list[str]]] = []
    for task in Task.objects.filter(taskset__name="tiny", family__in=FAMILIES):
        lines = (Path(task.directory) / "solution" / "solve.sh").read_text().splitlines()
        commands = "\n".join(line for line in lines if line and not line.startswith(("#", "set ")))
        right, wrong = (f"I shall do it.\n```bash\n{text}\n```" for text in (commands, "true # nothing"))
        script.append((re.escape(task.instruction.strip()), [right, wrong]))
    return [*script, (r"\nexit \d+", "```bash\nsubmit\n```")]
