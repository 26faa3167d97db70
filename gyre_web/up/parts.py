"""Which processes make up Gyre on one machine, in the order in which they start; they stop in the reverse order."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process. `patience_s`: how long it may take to stop before it is killed with all its children."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    patience_s: float = 10.0


def celery_worker(queue: str, num_threads: int) -> tuple[str, ...]:
    """Threads, nothing prefetched: a job is a rollout of hours, and must not wait behind another in a worker's memory."""
    options = f"-Q {queue} -n {queue}@%h --pool threads -c {num_threads} --without-gossip --without-mingle -l WARNING"
    return (sys.executable, "-m", "celery", "--quiet", "-A", "gyre_web", "worker", *options.split())


def build_parts(*, host: str, port: int, num_rollouts: int = 32) -> tuple[Part, ...]:
    manage = (sys.executable, str(Path(settings.BASE_DIR) / "manage.py"))
    web = ("-m", "uvicorn", "gyre_web.asgi:application", "--host", host, "--port", str(port), "--log-level", "warning")
    return (
        Part(name="gateway", command=(sys.executable, "-m", "environments.gateway")),
        Part(name="web", command=(sys.executable, *web, "--timeout-graceful-shutdown", "3")),
        Part(name="rollouts", command=celery_worker("rollouts", num_rollouts)),
        Part(name="cells", command=celery_worker("cells", 8), patience_s=45.0),
        Part(name="controller", command=(*manage, "controller")),
    )


def part_environment(urls: dict[str, str], secret_key: str) -> dict[str, str]:
    """What every part is told; one thread of mathematics each, since only engines and trainers compute."""
    return (
        os.environ
        | urls
        | {
            "DJANGO_SETTINGS_MODULE": "gyre_web.settings",
            "GYRE_SECRET_KEY": secret_key,
            "GYRE_DATA": str(settings.DATA_DIR),
            "GYRE_RUNTIME": str(settings.RUNTIME_DIR),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
    )
