"""Generate the built-in task set `shell-and-python`: small, checkable work for a small policy.

From:  a seed and two sizes (environments.tasksets.catalog).
To:    GeneratedTask records; `write_task` lays one out as a Harbor task directory.
Holds: the same seed gives the same bytes; no two tasks share (instruction, files), so the held-out split never
       collides with the training split; the solution's lines, one shell command each, earn reward 1, doing nothing 0
       (`manage.py tasks check`, and a test over every family).
Never: needs a network, an image, or more than a shell and python3.

A new family is one function in environments.tasksets.families and its name in FAMILIES there.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from environments.tasksets.families import FAMILIES, Draft, GeneratedTask

NAME = "shell-and-python"
AGENT_TIMEOUT_S = 300.0
VERIFIER_TIMEOUT_S = 60.0
MAX_DRAWS = 2000

__all__ = ["FAMILIES", "NAME", "GeneratedTask", "build_tasks", "write_task"]

TEST_HEAD = """#!/bin/sh
# Reward 1 if the work tree is as the instruction asks, else 0.
mkdir -p /logs/verifier
cd /work || exit 1
same() { [ -f "$1" ] && [ "$(cat "$1")" = "$(cat "/tests/expected/$1")" ]; }
if """
TEST_TAIL = """
then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt
fi
"""

CHECK_PY = '''"""Call the function that was asked for; print `passed` if every hidden case holds."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location

with open("/tests/cases.json") as file:
    wanted = json.load(file)
verdict, sys.stdout = sys.stdout, sys.stderr
sys.dont_write_bytecode = True
spec = spec_from_file_location("candidate", "/work/" + wanted["file"])
candidate = module_from_spec(spec)
spec.loader.exec_module(candidate)
function = getattr(candidate, wanted["function"])
if all(function(*case["arguments"]) == case["result"] for case in wanted["cases"]):
    verdict.write("passed")
'''

DOCKERFILE = (
    "FROM debian:bookworm-slim\nRUN apt-get update && apt-get install -y python3\nCOPY work/ /work/\nWORKDIR /work\n"
)


def build_tasks(*, seed: int, num_train: int, num_heldout: int) -> Iterator[GeneratedTask]:
    """Training tasks, then held-out ones; families take turns, so both splits hold all of them evenly."""
    random_state = random.Random(f"{NAME}/{seed}")
    seen: set[str] = set()
    families = list(FAMILIES.items())
    for index in range(num_train + num_heldout):
        family, draw = families[index % len(families)]
        split = "train" if index < num_train else "heldout"
        draft = _draw_unseen(family, draw, random_state, seen)
        yield GeneratedTask(name=f"{family}-{index:04d}", family=family, split=split, draft=draft)


def _draw_unseen(
    family: str, draw: Callable[[random.Random], Draft], random_state: random.Random, seen: set[str]
) -> Draft:
    for _ in range(MAX_DRAWS):
        draft = draw(random_state)
        key = json.dumps([draft.instruction, draft.files], sort_keys=True)
        if key not in seen:
            seen.add(key)
            return draft
    raise ValueError(f"Family {family} has no more distinct tasks after {len(seen)}; ask for a smaller set.")


def write_task(task: GeneratedTask, directory: Path) -> None:
    """Lay the task out as a Harbor task directory."""
    draft = task.draft
    texts = {
        "task.toml": _task_toml(task),
        "instruction.md": draft.instruction + "\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": build_test(draft),
        "solution/solve.sh": "#!/bin/sh\nset -e\n" + "".join(f"{line}\n" for line in draft.solution),
        **{f"environment/work/{path}": text for path, text in draft.files.items()},
        **{f"tests/expected/{path}": text for path, text in draft.after.items()},
    }
    if draft.function:
        texts["tests/check.py"] = CHECK_PY
        texts["tests/cases.json"] = json.dumps(_cases(draft), indent=1) + "\n"
    (directory / "environment" / "work").mkdir(parents=True)
    for path, text in texts.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if path.endswith(".sh"):
            target.chmod(0o755)


def build_test(draft: Draft) -> str:
    """The verifier: every file that must be there with its content, every path that must not, hidden cases."""
    conditions = [f"same {path}" for path in draft.after]
    conditions += [f"[ -d {path} ]" for path in draft.directories]
    conditions += [f"[ ! -e {path} ]" for path in draft.absent]
    if draft.function:
        conditions.append('[ "$(timeout 5 python3 -I -S -B /tests/check.py 2>/dev/null)" = passed ]')
    return TEST_HEAD + " &&\n   ".join(conditions) + TEST_TAIL


def _cases(draft: Draft) -> dict[str, object]:
    cases = [{"arguments": list(arguments), "result": result} for arguments, result in draft.cases]
    return {"file": draft.function_file, "function": draft.function, "cases": cases}


def _task_toml(task: GeneratedTask) -> str:
    return (
        'version = "1.0"\n\n[metadata]\n'
        f'family = "{task.family}"\nsplit = "{task.split}"\ndifficulty = "easy"\ncategory = "{task.family}"\n\n'
        f"[agent]\ntimeout_sec = {AGENT_TIMEOUT_S}\n\n[verifier]\ntimeout_sec = {VERIFIER_TIMEOUT_S}\n\n"
        "[environment]\ncpus = 1\nmemory_mb = 512\nstorage_mb = 256\n"
    )
