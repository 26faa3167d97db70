"""What a sandbox costs: to start, warm and cold; a call through its relay; 64 at once; and what is left behind.

From:  `manage.py bench sandboxes`.
To:    warm_ms, cold_ms, relay_ms, orphans, and the same of each kind; docker also from a task's image; disk: how far
       past its limit a program gets.
Holds: real sandboxes, gateway and Postgres; the engine is the scripted one. A start counts from the launch to the first
       word of the program. `image` of each figure says what it started from: a small image of this machine's programs,
       and a task's, built from a Dockerfile (_task_image.py). A container engine is started where none answers.
       The relay's overhead is a call through it less the same call made to its server directly, in the same sandbox's
       own words and on the same machine.

A process sandbox needs no preparation: its only start is the warm one. `warm_ms` is the slower kind's.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

from environments.models import Rollout, Sandbox, Session
from environments.sandboxes import Handle, Launch, Limits, get_sandboxes, reap
from gyre_web.bench._disk import measure_disk
from gyre_web.bench._echo import CLIENT, serve_echo
from gyre_web.bench._small_image import IMAGE, import_image
from gyre_web.bench._stage import Stage, stage
from gyre_web.bench._task_image import measure_task_image
from gyre_web.bench.gateway import prepare_rows, start_engine, start_gateway
from gyre_web.up.engine import OwnEngine, answers, why_no_engine

MIB = 1 << 20
LIMITS = Limits(cpu_s=None, memory_bytes=512 * MIB, num_processes=64, file_bytes=64 * MIB, disk_bytes=256 * MIB)
TASK_LIMITS = replace(LIMITS, memory_bytes=2048 * MIB, disk_bytes=2048 * MIB)
KINDS = (Sandbox.Kind.PROCESS.value, Sandbox.Kind.DOCKER.value)
TARGET_WARM_MS, TARGET_COLD_MS, TARGET_RELAY_MS = 150.0, 1500.0, 1.0
WORD = b"up\n"
SAY_UP = ["/bin/sh", "-c", "echo up; sleep 600"]
LAUNCHERS = 8
DISK_BYTES = 64 * MIB
OPEN_DIRECTORY = "srv/opentmp"
"""Of the small image: everybody may write there, into the container's own layer."""
ASK = """
import http.client, json, sys
c = http.client.HTTPConnection("127.0.0.1", 8100)
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "bench"}]})
c.request("POST", f"/s/{sys.argv[1]}/v1/chat/completions", body, {"content-type": "application/json"})
answer = c.getresponse()
answer.read()
print("answered", answer.status, flush=True)
sys.stdin.read()
import time
time.sleep(600)
"""


def run(quick: bool) -> dict[str, Any]:
    rounds, crowd = (5, 8) if quick else (15, 64)
    reason = why_no_engine()
    with stage() as made, engine():
        settings.DATA_DIR = Path(made.environment["GYRE_DATA"])
        settings.GATEWAY_SOCKET_DIR = Path(made.environment["GYRE_RUNTIME"]) / "gateway"
        settings.WARM_SANDBOXES = 0
        tree = made.directory / "tree"
        tree.mkdir()
        (tree / "task.txt").write_text("find me\n")
        image = None if reason else import_image("1", {f"{OPEN_DIRECTORY}/kept": "."})
        prepare_rows(made)
        kinds = {
            kind: measure_kind(made, kind, tree, image if kind == "docker" else None, rounds=rounds, crowd=crowd)
            for kind in KINDS
            if kind == "process" or image
        }
        task_image: dict[str, Any] = measure_from_task_image(made, quick, rounds) if image else {"skipped": reason}
        orphans = count_orphans()
    starts = [*kinds.values(), *([] if "skipped" in task_image else [task_image])]
    found = {
        "name": "sandboxes",
        "quick": quick,
        "warm_ms": max(start["warm_ms"] for start in starts),
        "cold_ms": max(start["cold_ms"] for start in starts),
        "relay_ms": max(kind["relay_ms"] for kind in kinds.values()),
        "orphans": orphans,
        "at_once": crowd,
        "kinds": kinds,
        "task_image": task_image,
        "kinds_skipped": {"docker": reason} if reason else {},
    }
    return found | {"ok": is_ok(found)}


def is_ok(found: dict[str, Any]) -> bool:
    return (
        found["warm_ms"] <= TARGET_WARM_MS
        and found["cold_ms"] <= TARGET_COLD_MS
        and found["relay_ms"] <= TARGET_RELAY_MS
        and found["orphans"] == 0
        and not found["kinds_skipped"]
        and all(kind["answered"] == found["at_once"] for kind in found["kinds"].values())
    )


@contextlib.contextmanager
def engine() -> Iterator[None]:
    """The one that answers, else one of our own."""
    if answers() or why_no_engine():
        yield
        return
    own = OwnEngine()
    try:
        own.start()
        yield
    finally:
        own.stop()


def measure_kind(made: Stage, kind: str, tree: Path, image: str | None, *, rounds: int, crowd: int) -> dict[str, Any]:
    def build(command: list[str], gateway: bool = False) -> Launch:
        return build_launch(command, tree=tree, image=image, gateway=gateway)

    get_sandboxes(kind).launch(build(["true"])).remove()  # what is made once a machine
    cold = [time_start(kind, build(SAY_UP)) for _ in range(rounds)]
    warm = time_warm(build(SAY_UP), rounds) if kind == "docker" else cold
    return {
        "image": f"{IMAGE}:1" if image else "none",
        "cold_ms": statistics.median(cold),
        "warm_ms": statistics.median(warm),
        "cold_all_ms": [round(value, 1) for value in cold],
        "warm_all_ms": [round(value, 1) for value in warm],
        **measure_relay(kind, build),
        **measure_crowd(made, kind, build, crowd),
        "disk": measure_past_limit(kind, image),
    }


def measure_past_limit(kind: str, image: str | None) -> list[dict[str, Any]]:
    def build(command: list[str]) -> Launch:
        return build_launch(command, tree=None, image=image, limits=replace(LIMITS, disk_bytes=DISK_BYTES))

    places = ["/work", f"/{OPEN_DIRECTORY}"] if image else ["/work"]
    return [row for place in places for row in measure_disk(kind, build, place, DISK_BYTES)]


def measure_from_task_image(made: Stage, quick: bool, rounds: int) -> dict[str, Any]:
    return measure_task_image(
        made.directory,
        quick,
        rounds,
        build_launch=lambda image: build_launch(SAY_UP, tree=None, image=image, limits=TASK_LIMITS),
        cold=lambda launch: time_start("docker", launch),
        warm=time_warm,
    )


def build_launch(
    command: list[str], *, tree: Path | None, image: str | None, gateway: bool = False, limits: Limits = LIMITS
) -> Launch:
    return Launch(
        rollout_id=None,
        session_id=None,
        purpose="agent",
        command=command,
        environment={},
        work_tree=tree,
        read_only=(),
        gateway=gateway,
        timeout_s=600.0,
        limits=limits,
        image=image,
    )


def time_start(kind: str, launch: Launch) -> float:
    """Milliseconds from the launch to the program's first word."""
    began = time.monotonic()
    handle = get_sandboxes(kind).launch(launch)
    wait_output(handle, WORD)
    took = 1000 * (time.monotonic() - began)
    handle.remove()
    return took


def time_warm(launch: Launch, rounds: int) -> list[float]:
    """Each start finds one that was prepared; preparing is not counted."""
    from environments.sandboxes.container import build_form
    from environments.sandboxes.docker import prepare
    from environments.sandboxes.pool import create_warm_row

    took = []
    for _ in range(rounds):
        form = build_form(launch)
        prepare(form, create_warm_row(form))
        took.append(time_start("docker", launch))
    return took


def measure_relay(kind: str, build: Any) -> dict[str, Any]:
    """Median of calls through the relay, less that of the same calls to its server."""
    from environments.sandboxes import PYTHON

    directory = Path(settings.GATEWAY_SOCKET_DIR)
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    with serve_echo(directory / "gateway.sock") as direct_ms:
        handle = get_sandboxes(kind).launch(build([PYTHON, "-I", "-S", "-c", CLIENT], gateway=True))
        wait_output(handle, b"ms\n")
        through = float(handle.read_output(0).split()[0])
        handle.remove()
        direct = direct_ms()
    return {"relay_ms": max(0.0, through - direct), "through_ms": through, "direct_ms": direct}


def measure_crowd(made: Stage, kind: str, build: Any, number: int) -> dict[str, Any]:
    """So many at once, each asks the scripted engine once through the gateway and stays; then all are removed."""
    from environments.sandboxes import PYTHON

    engine_process = start_engine(made, "instant", tokens_per_s=0, tokens_per_chunk=100)
    gateway = start_gateway(made)
    sessions = list(Session.objects.filter(rollout__pool="instant", finished_at=None).order_by("created_at")[:number])
    began = time.monotonic()

    def launch(session: Session) -> Handle:
        try:
            command = [PYTHON, "-I", "-S", "-c", ASK, session.key]
            handle = get_sandboxes(kind).launch(build(command, gateway=True))
            wait_output(handle, b"answered", timeout_s=300.0)
            return handle
        finally:
            connection.close()

    with ThreadPoolExecutor(LAUNCHERS) as threads:
        handles = list(threads.map(launch, sessions))
    up_s = time.monotonic() - began
    running = sum(handle.status().running for handle in handles)
    answered = sum(b"answered 200" in handle.read_output(0) for handle in handles)
    began = time.monotonic()
    with ThreadPoolExecutor(LAUNCHERS) as threads:
        list(threads.map(remove, handles))
    for child in (gateway, engine_process):
        child.terminate()
        child.wait()
        made.children.remove(child)
    Path(settings.GATEWAY_SOCKET_DIR, "gateway.sock").unlink(missing_ok=True)
    Rollout.objects.filter(pool="instant").update(state=Rollout.State.RUNNING)
    return {
        "answered": answered,
        "running_at_once": running,
        "all_up_s": round(up_s, 2),
        "all_gone_s": round(time.monotonic() - began, 2),
    }


def remove(handle: Handle) -> None:
    try:
        handle.remove()
    finally:
        connection.close()


def wait_output(handle: Handle, word: bytes, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while word not in (said := handle.read_output(0)):
        if time.monotonic() > deadline or not handle.status().running:
            raise RuntimeError(f"the sandbox did not say {word!r} but {said[-500:]!r} ({handle.status()})")
        time.sleep(0.002)


def count_orphans() -> int:
    """What is left after everything was removed, by every trace that a sandbox leaves."""
    from environments.sandboxes.audit import find_traces

    reap()
    return len(find_traces())
