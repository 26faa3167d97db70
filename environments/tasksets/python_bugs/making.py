"""Make the tasks of `python-bugs`: mutate a package, keep what its tests notice, write it down as Harbor tasks.

From:  sources.py (packages), mutations.py (candidates), a sandbox that runs explore.py (what the tests notice).
To:    Harbor task directories (writing.py); environments.tasksets.catalog adds the rows.
Holds: the same seed, packages and Python give the same bytes; one function's tasks are all in the same split; code of a
       package runs in sandboxes only. What a sandbox found is kept in the cache, so an ended generation goes on.
Cost:  about two runs of a package's tests a task, and one for each mutation that no test notices.
"""

import hashlib
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.db import connection

from environments.sandboxes import Launch, Limits, Mount, SandboxError, Sandboxes, read_regular
from environments.tasksets.python_bugs.mutations import KINDS, Mutation, find_mutations
from environments.tasksets.python_bugs.sources import Source, SourceError, fetch, is_below, load_sources, read_package
from environments.tasksets.python_bugs.writing import GRADING_PATH, Bug, write_task

NAME = "python-bugs"
PER_FUNCTION = 4
MOST_FAILING = 0.5
"""A mutation that breaks a larger share of the tests than this points at nothing in particular."""
HELDOUT_ONE_IN = 5
BASELINE_CPU_S = 60
EXPLORE_TIMEOUT_S = 3 * 3600.0
MAX_ANSWER_BYTES = 64 << 20
RENEW_S = 60.0
PROGRAMS = Path(__file__).parent
MIB = 1 << 20
LIMITS = Limits(
    cpu_s=None, memory_bytes=2048 * MIB, num_processes=64, file_bytes=512 * MIB, disk_bytes=1024 * MIB
)  # fmt: skip

Say = Callable[[str], None]


class GenerationError(RuntimeError):
    """The set cannot be made; the text says of which package, why and what to do. Nothing was published."""


class _Stopped(Exception):
    """Another package failed; this one is not to blame."""


@dataclass(frozen=True, kw_only=True)
class _Order:
    """What is wanted of one package."""

    source: Source
    seed: int
    per_package: int


def make_tasks(
    destination: Path,
    *,
    sandboxes: Sandboxes,
    cache: Path,
    seed: int,
    per_package: int = 20,
    packages: Sequence[str] = (),
    jobs: int = 2,
    say: Say = lambda text: None,
) -> int:
    """Write the task directories below `destination`; how many. Raises GenerationError, SourceError."""
    if reason := sandboxes.check():
        raise GenerationError(reason)
    orders = [_Order(source=source, seed=seed, per_package=per_package) for source in load_sources(packages)]
    destination.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()

    def work(order: _Order) -> int:
        try:
            return _make_package(destination, order, sandboxes=sandboxes, cache=cache, say=say, stop=stop)
        except BaseException:
            stop.set()
            raise
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures = [pool.submit(work, order) for order in orders]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, _Stopped)):
        raise error
    return sum(future.result() for future in futures)


def _make_package(
    destination: Path, order: _Order, *, sandboxes: Sandboxes, cache: Path, say: Say, stop: threading.Event
) -> int:
    if stop.is_set():
        raise _Stopped
    source = order.source
    files = read_package(source, fetch(source, cache / "sdists"))
    candidates = order_candidates(source, files, order.seed)
    suite = build_suite(source, files)
    answer = _explore(files, candidates, suite, order, sandboxes=sandboxes, cache=cache, stop=stop)
    accepted = answer["accepted"]
    tried, passing = answer["tried"], len(answer["stable"])
    say(
        f"{source.name} {source.version}: {len(accepted)} tasks of {tried} mutations ({len(candidates)} possible), "
        f"{passing} tests in {answer['cpu_s']:.1f} s of CPU"
    )
    if len(accepted) < order.per_package:
        raise GenerationError(
            f"{source.name} {source.version} gives only {len(accepted)} tasks of {order.per_package} ({passing} of its "
            f"tests pass unchanged; refused: {answer['refused']}). Ask for fewer with --per-package."
        )
    for entry in accepted:
        mutation = candidates[entry["index"]]
        bug = Bug(
            source=source,
            mutation=mutation,
            failed=entry["failed"],
            stable=answer["stable"],
            suite=suite,
            split=choose_split(source, mutation),
        )
        write_task(bug, files, destination / bug.name)
    return len(accepted)


def choose_split(source: Source, mutation: Mutation) -> str:
    """By package and function, so that no function of a held-out task is seen in training."""
    digest = hashlib.sha256(f"{source.name}/{mutation.file}/{mutation.function}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:4]) % HELDOUT_ONE_IN == 0 else "train"


def order_candidates(source: Source, files: dict[str, bytes], seed: int) -> list[Mutation]:
    """Every mutation of the package's code in a seeded order in which the kinds take turns."""
    chance = random.Random(f"{NAME}/{seed}/{source.name}")
    by_kind: dict[str, list[Mutation]] = {kind: [] for kind in KINDS}
    for path, data in files.items():
        if path.endswith(".py") and is_below(path, source.mutate or source.code) and not is_below(path, source.tests):
            for mutation in find_mutations(path, data):
                by_kind[mutation.kind].append(mutation)
    for mutations in by_kind.values():
        chance.shuffle(mutations)
    longest = max(map(len, by_kind.values()), default=0)
    return [mutations[turn] for turn in range(longest) for mutations in by_kind.values() if turn < len(mutations)]


def build_suite(source: Source, files: dict[str, bytes]) -> dict[str, Any]:
    """What run_tests.py needs to know; modules in order of name."""
    modules = []
    for path in files:
        if path.endswith(".py") and is_below(path, source.tests):
            name = path.rsplit("/", 1)[-1]
            if path in source.tests or name.startswith("test"):
                modules.append(_module_name(path, source))
    return {"path": list(source.path), "modules": sorted(modules), "tests": list(source.tests)}


def _module_name(path: str, source: Source) -> str:
    inside = [root for root in source.path if root != "." and path.startswith(root + "/")]
    relative = path[len(inside[0]) + 1 :] if inside else path
    return relative.removesuffix(".py").replace("/", ".")


# What the tests notice.


def _explore(
    files: dict[str, bytes],
    candidates: list[Mutation],
    suite: dict[str, Any],
    order: _Order,
    *,
    sandboxes: Sandboxes,
    cache: Path,
    stop: threading.Event,
) -> dict[str, Any]:
    job = {
        "wanted": order.per_package,
        "per_function": PER_FUNCTION,
        "per_kind": max(1, order.per_package // 3),
        "most_failing": MOST_FAILING,
        "baseline_cpu_s": BASELINE_CPU_S,
        "mutations": [asdict(mutation) for mutation in candidates],
    }
    kept = cache / "explored" / f"{order.source.name}-{_key(job, suite, order.source)}.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    answer = _explore_in_sandbox(files, job, suite, order.source, sandboxes, stop)
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(".part")
    part.write_text(json.dumps(answer))
    part.rename(kept)
    return answer


def _key(job: dict[str, Any], suite: dict[str, Any], source: Source) -> str:
    programs = [(PROGRAMS / name).read_text() for name in ("explore.py", "run_tests.py")]
    text = json.dumps([job, suite, source.sha256, sys.version_info[:3], programs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _explore_in_sandbox(
    files: dict[str, bytes],
    job: dict[str, Any],
    suite: dict[str, Any],
    source: Source,
    sandboxes: Sandboxes,
    stop: threading.Event,
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gyre-explore-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        write_files(directory / "tree", files)
        (directory / "tool").mkdir()
        for program in ("explore.py", "run_tests.py"):
            shutil.copyfile(PROGRAMS / program, directory / "tool" / program)
        (directory / "tool" / "job.json").write_text(json.dumps(job))
        (directory / "tool" / "suite.json").write_text(json.dumps(suite))
        try:
            return _run_explorer(directory, sandboxes, stop)
        except (OSError, ValueError, SandboxError) as error:
            raise GenerationError(f"{source.name} {source.version} could not be explored: {error}") from error


def _run_explorer(directory: Path, sandboxes: Sandboxes, stop: threading.Event) -> dict[str, Any]:
    handle = sandboxes.launch(
        Launch(
            rollout_id=None,
            session_id=None,
            purpose="verifier",
            command=("python3", "-I", "-S", "-B", "/gyre/explore/explore.py"),
            environment={"PATH": GRADING_PATH},
            work_tree=directory / "tree",
            read_only=(Mount(source=directory / "tool", target="/gyre/explore"),),
            gateway=False,
            timeout_s=EXPLORE_TIMEOUT_S,
            limits=LIMITS,
        )
    )
    try:
        renewed_at = time.monotonic()
        while handle.status().running:
            if stop.wait(0.1):
                raise _Stopped
            if time.monotonic() > renewed_at + RENEW_S:
                handle.renew()
                renewed_at = time.monotonic()
        try:
            return json.loads(read_regular(handle.logs / "explore.json", limit=MAX_ANSWER_BYTES))
        except FileNotFoundError as error:
            said = handle.read_output(0).decode(errors="replace")[-500:]
            raise OSError(f"the program in the sandbox gave no answer; it said: {said}") from error
    finally:
        handle.remove()


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


__all__ = ["NAME", "GenerationError", "SourceError", "choose_split", "make_tasks"]
