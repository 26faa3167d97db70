"""Grade a work tree: the named tests that failed and all that passed must pass, as they were before the agent came.

From:  /work (what the agent left), /tests/suite.json, /tests/required.json and /tests/pristine (the tests' originals).
To:    /logs/verifier/reward.json: reward 1 only if every required test passes, else 0.
Holds: tests come from /tests/pristine, never from /work; files that the agent changed there are named in the log.
"""

import filecmp
import json
import os
import secrets
import shutil
import subprocess
import sys
from typing import Any

GRADED = "/tmp/graded"
PRISTINE = "/tests/pristine"
RESULT = "/tmp/gyre-result.json"
TIMEOUT_S = 240
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", ""),
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
}


def main() -> None:
    with open("/tests/required.json") as file:
        required = json.load(file)
    with open("/tests/suite.json") as file:
        roots = json.load(file)["tests"]
    outcome: dict[str, Any] = {"passed": [], "failed": {}}
    try:
        shutil.copytree("/work", GRADED, symlinks=True)
        for root in roots:
            restore(root)
        outcome = run_tests()
    except subprocess.TimeoutExpired:
        print(f"The tests did not end within {TIMEOUT_S} s.")
    except (OSError, ValueError, KeyError, RecursionError) as error:
        print(f"The work tree could not be graded: {type(error).__name__}: {str(error)[:300]}")
    report(required, outcome)


def run_tests() -> dict[str, Any]:
    """Raises where the tests did not come to their end, or something else wrote their result."""
    command = [sys.executable, "-I", "-S", "-B", "/tests/run_tests.py", "/tests/suite.json", RESULT]
    token = secrets.token_hex(16)
    subprocess.run(command, cwd=GRADED, env=ENVIRONMENT, timeout=TIMEOUT_S, check=False, input=f"{token}\n", text=True)
    with open(RESULT) as file:
        outcome: dict[str, Any] = json.load(file)
    if outcome["token"] != token:
        raise ValueError("its result was written by something else")
    return outcome


def restore(root: str) -> None:
    """Put the original of one test file or directory in place of what the agent left there."""
    left, original = os.path.join("/work", root), os.path.join(PRISTINE, root)
    for name in sorted(differing(left, original)):
        print(f"changed by the agent, not used: {os.path.join(root, name) if name else root}")
    target = os.path.join(GRADED, root)
    if os.path.isdir(target) and not os.path.islink(target):
        shutil.rmtree(target)
    elif os.path.lexists(target):
        os.unlink(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(original):
        shutil.copytree(original, target)
    else:
        shutil.copyfile(original, target)


def differing(left: str, original: str) -> list[str]:
    if not os.path.isdir(original):
        same = os.path.isfile(left) and not os.path.islink(left) and filecmp.cmp(left, original, shallow=False)
        return [] if same else [""]
    names = {
        os.path.relpath(os.path.join(directory, name), original)
        for directory, _, files in os.walk(original)
        for name in files
    }
    return [
        name
        for name in names
        if os.path.islink(os.path.join(left, name))
        or not os.path.isfile(os.path.join(left, name))
        or not filecmp.cmp(os.path.join(left, name), os.path.join(original, name), shallow=False)
    ]


def report(required: dict[str, list[str]], outcome: dict[str, Any]) -> None:
    passed = set(outcome["passed"])
    counts: dict[str, int] = {}
    for title in ("failing_before", "passing_before"):
        names = required[title]
        missing = [name for name in names if name not in passed]
        counts[title] = len(names) - len(missing)
        print(f"{title}: {counts[title]} of {len(names)} pass")
        for name in missing[:20]:
            found = outcome["failed"].get(name)
            print(f"  {name}: {found['error']}: {found['message'][:300]}" if found else f"  {name}: did not run")
    total = sum(len(names) for names in required.values())
    value = {
        "reward": 1 if sum(counts.values()) == total else 0,
        "repaired": counts["failing_before"] / len(required["failing_before"]),
        "kept": counts["passing_before"] / max(1, len(required["passing_before"])),
    }
    os.makedirs("/logs/verifier", exist_ok=True)
    with open("/logs/verifier/reward.json", "w") as file:
        json.dump(value, file)


if __name__ == "__main__":
    main()
