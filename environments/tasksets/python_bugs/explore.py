"""Find out, in a sandbox, which mutations of a package its own tests notice. Plain Python, no package is needed.

From:  /gyre/explore/job.json, written by environments.tasksets.python_bugs.making; the tree in the working directory.
To:    /logs/explore.json: {"stable": [name], "accepted": [{"index", "failed"}], "tried": n, "refused": {reason: n}}.
Holds: the same job gives the same answer: the hash seed is fixed, only tests that pass twice count, what a mutation
       breaks must be broken the same way twice, and a limit is one of CPU time.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from typing import Any

Outcome = dict[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))
RESULT = "/tmp/result.json"
MEMORY_BYTES = 1 << 30
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", ""),
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
}
WALL_FACTOR = 20
"""Wall time may be so much longer than CPU time on a busy machine."""
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def run(suite_path: str, cpu_s: int) -> tuple[Outcome | None, float]:
    """What the tests did and the seconds of CPU that they took; None where they did not come to an end."""
    if os.path.exists(RESULT):
        os.unlink(RESULT)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-I", "-S", "-B", os.path.join(HERE, "run_tests.py"), suite_path, RESULT]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    try:
        subprocess.run(
            command, env=ENVIRONMENT, preexec_fn=limit, timeout=cpu_s * WALL_FACTOR, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, start_new_session=True,
        )  # fmt: skip
        with open(RESULT) as file:
            outcome = json.load(file)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None, 0.0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return outcome, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with open(os.path.join(HERE, "job.json")) as file:
        job = json.load(file)
    suite_path = os.path.join(HERE, "suite.json")
    stable, cpu_s = find_stable(suite_path, job["baseline_cpu_s"])
    answer: dict[str, Any] = {"stable": stable, "cpu_s": cpu_s, "accepted": [], "tried": 0, "refused": {}}
    per_function: dict[tuple[str, str], int] = {}
    per_kind: dict[str, int] = {}
    started = time.monotonic()
    for index, mutation in enumerate(job["mutations"]):
        if len(answer["accepted"]) >= job["wanted"] or not stable:
            break
        function, kind = (mutation["file"], mutation["function"]), mutation["kind"]
        if per_function.get(function, 0) >= job["per_function"] or per_kind.get(kind, 0) >= job["per_kind"]:
            continue
        answer["tried"] += 1
        failed, reason = judge(mutation, suite_path, set(stable), int(cpu_s * 3) + 3, job["most_failing"])
        if reason:
            answer["refused"][reason] = answer["refused"].get(reason, 0) + 1
            continue
        per_function[function] = per_function.get(function, 0) + 1
        per_kind[kind] = per_kind.get(kind, 0) + 1
        answer["accepted"].append({"index": index, "failed": failed})
    answer["seconds"] = round(time.monotonic() - started, 1)
    with open("/logs/explore.json", "w") as file:
        json.dump(answer, file)


def find_stable(suite_path: str, cpu_s: int) -> tuple[list[str], float]:
    """Names of the tests that pass twice, and the CPU seconds of one run."""
    first, seconds = run(suite_path, cpu_s)
    second, again = run(suite_path, cpu_s)
    if first is None or second is None:
        return [], 0.0
    return sorted(set(first["passed"]) & set(second["passed"])), max(seconds, again)


def judge(
    mutation: dict[str, Any], suite_path: str, stable: set[str], cpu_s: int, most_failing: float
) -> tuple[dict[str, Any] | None, str]:
    """(what fails now, "") or (None, why the mutation makes no task)."""
    with open(mutation["file"], "rb") as file:
        original = file.read()
    changed = original[: mutation["start"]] + mutation["new"].encode() + original[mutation["end"] :]
    try:
        compile(changed, mutation["file"], "exec")
    except (SyntaxError, ValueError):
        return None, "no longer Python"
    with open(mutation["file"], "wb") as file:
        file.write(changed)
    try:
        first, _ = run(suite_path, cpu_s)
        if first is None:
            return None, "does not end"
        broken = stable - set(first["passed"])
        if not broken:
            return None, "not noticed"
        if len(broken) > most_failing * len(stable) or not broken <= set(first["failed"]):
            return None, "breaks too much"
        second, _ = run(suite_path, cpu_s)
        if second is None or stable - set(second["passed"]) != broken or told(first, broken) != told(second, broken):
            return None, "breaks differently each time"
        return told(first, broken), ""
    finally:
        with open(mutation["file"], "wb") as file:
            file.write(original)


def told(outcome: Outcome, names: set[str]) -> dict[str, Any]:
    found = {}
    for name in sorted(names):
        entry = dict(outcome["failed"][name])
        entry["message"] = ADDRESS.sub("0x...", entry["message"])
        found[name] = entry
    return found


if __name__ == "__main__":
    main()
