"""Write one bug down as a Harbor task: what the agent is told, what it finds, what grades it, what mends it.

From:  making.py: a package, the mutation of it, and what its tests said then.
To:    a task directory.
Holds: the instruction speaks of behaviour alone: failing tests, their assertion and values; never of the file or line
       that was changed. The mutated line is the only difference between the work tree and the package.
"""

import ast
import difflib
import hashlib
import io
import json
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.tasksets.python_bugs.mutations import Mutation
from environments.tasksets.python_bugs.sources import Source, is_below

GRADING_PATH = "/gyre/venv/bin:/usr/local/bin:/usr/bin:/bin"
"""The Python that runs Gyre, in a process sandbox; in an image, the image's own."""
AGENT_TIMEOUT_S = 1800.0
VERIFIER_TIMEOUT_S = 600.0
MAX_TOLD = 3
MAX_LINES = 12
MAX_CHARS = 700
PROGRAMS = Path(__file__).parent

TEST_SH = """#!/bin/sh
# Reward 1 if the failing tests pass and no other test stopped passing; the tests are the originals of /tests/pristine.
mkdir -p /logs/verifier
exec python3 -I -S -B /tests/grade.py
"""
DOCKERFILE = "FROM python:3-slim\nCOPY work/ /work/\nWORKDIR /work\n"


@dataclass(frozen=True, kw_only=True)
class Bug:
    source: Source
    mutation: Mutation
    failed: dict[str, dict[str, Any]]
    """{"error", "message", "file", "line"} by name of a test that passed before."""
    stable: list[str]
    """Names of all tests that pass without the mutation."""
    suite: dict[str, Any]
    split: str

    @property
    def name(self) -> str:
        mutation = self.mutation
        text = f"{mutation.file}:{mutation.start}:{mutation.end}:{mutation.new}"
        package = self.source.name.lower().replace(".", "-")
        return f"{package}-{mutation.kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def write_task(bug: Bug, files: dict[str, bytes], directory: Path) -> None:
    """files: the package as it is published."""
    mutated = apply(bug.mutation, files[bug.mutation.file])
    shown = {**files, bug.mutation.file: mutated}
    pristine = {path: data for path, data in files.items() if is_below(path, bug.source.tests)}
    contents: dict[str, bytes] = {f"environment/work/{path}": data for path, data in shown.items()}
    contents |= {f"tests/pristine/{path}": data for path, data in pristine.items()}
    texts = {
        "instruction.md": build_instruction(bug, files),
        "task.toml": build_toml(bug),
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": TEST_SH,
        "tests/suite.json": json.dumps(bug.suite, indent=1) + "\n",
        "tests/required.json": json.dumps(required_tests(bug), indent=1) + "\n",
        "solution/solve.sh": build_solution(bug.mutation, files[bug.mutation.file], mutated),
        "solution/fix.patch": build_patch(bug.mutation.file, mutated, files[bug.mutation.file]),
    }
    contents |= {path: text.encode() for path, text in texts.items()}
    for path, data in contents.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if path.endswith(".sh") else 0o644)
    for program in ("grade.py", "run_tests.py"):
        shutil.copyfile(PROGRAMS / program, directory / "tests" / program)


def apply(mutation: Mutation, original: bytes) -> bytes:
    return original[: mutation.start] + mutation.new.encode() + original[mutation.end :]


def required_tests(bug: Bug) -> dict[str, list[str]]:
    failing = sorted(bug.failed)
    return {"failing_before": failing, "passing_before": [name for name in bug.stable if name not in bug.failed]}


# What the agent is told.


def build_instruction(bug: Bug, files: dict[str, bytes]) -> str:
    names = sorted(bug.failed)
    number = (
        f"{len(names)} test{'s' if len(names) != 1 else ''} that passed before fail{'s' if len(names) == 1 else ''}"
    )
    parts = [
        f"/work holds the Python package {bug.source.name} {bug.source.version} with its tests. Since the last change "
        f"{number} now:",
        "\n".join(f"- {name}" for name in names[:MAX_TOLD]),
        f"and {len(names) - MAX_TOLD} more." if len(names) > MAX_TOLD else "",
        _tell(names[0], bug.failed[names[0]], files),
        f"Find the cause in the package's code and mend it, so that these tests pass again and no other test stops "
        f"passing. Do not change the tests: the originals are used.\n\nTo run the first one: {run_command(bug, names[0])}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def run_command(bug: Bug, name: str) -> str:
    paths = [path for path in bug.source.path if path != "."]
    before = f"PYTHONPATH={':'.join(paths)} " if paths else ""
    return f"cd /work && {before}python3 -m unittest {name}"


def _tell(name: str, failure: dict[str, Any], files: dict[str, bytes]) -> str:
    statement = find_statement(files.get(failure["file"], b""), failure["line"])
    said = shorten(f"{failure['error']}: {failure['message']}".rstrip(": \n"))
    told = f"{name.rsplit('.', 1)[-1]} fails"
    told += f" at\n\n{textwrap.indent(shorten(statement), '    ')}\n\nwith" if statement else " with"
    return f"{told}\n\n{textwrap.indent(said, '    ')}"


def find_statement(data: bytes, line: int) -> str:
    """The source of the innermost statement at a line of a test file; only its head where it holds others."""
    if not line:
        return ""
    lines = data.decode().split("\n")
    found: ast.stmt | None = None
    for node in ast.walk(ast.parse(data)):
        holds = isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        if isinstance(node, ast.stmt) and holds and (found is None or node.lineno >= found.lineno):
            found = node
    if found is None:
        return ""
    body = getattr(found, "body", None)
    last = body[0].lineno - 1 if body else found.end_lineno or line
    return textwrap.dedent("\n".join(lines[found.lineno - 1 : max(last, found.lineno)]))


def shorten(text: str) -> str:
    lines = text.splitlines()
    kept = "\n".join(lines[:MAX_LINES])[:MAX_CHARS]
    return kept if kept == text else f"{kept} ..."


def build_toml(bug: Bug) -> str:
    source, mutation = bug.source, bug.mutation
    metadata = {
        "family": source.name,
        "split": bug.split,
        "difficulty": "medium",
        "category": "bug-fix",
        "package": source.name,
        "package_version": source.version,
        "package_sha256": source.sha256,
        "licence": source.licence,
        "mutation": mutation.kind,
        "function": f"{mutation.file}:{mutation.function}",
    }
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in metadata.items())
    return (
        f'version = "1.0"\n\n[metadata]\n{lines}\n[agent]\ntimeout_sec = {AGENT_TIMEOUT_S}\n\n'
        f'[verifier]\ntimeout_sec = {VERIFIER_TIMEOUT_S}\n\n[verifier.env]\nPATH = "{GRADING_PATH}"\n\n'
        "[environment]\ncpus = 1\nmemory_mb = 2048\nstorage_mb = 512\n"
    )


# What mends it.


def build_patch(path: str, mutated: bytes, original: bytes) -> str:
    before, after = (io.StringIO(data.decode(), newline="").readlines() for data in (mutated, original))
    return "".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"))


def build_solution(mutation: Mutation, original: bytes, mutated: bytes) -> str:
    """Two shell commands, one a line: look at the place, then undo the mutation."""
    path = shlex.quote(mutation.file)
    first, last = max(1, mutation.line - 5), mutation.line + 5
    number = mutation.line
    if mutation.new:
        changed = mutated.splitlines()[number - 1].decode()
        start = mutation.start - (original.rfind(b"\n", 0, mutation.start) + 1)
        column = len(original.splitlines()[number - 1][:start].decode())
        script = f"{number}{build_substitution(changed, column, mutation.new, mutation.old)}"
    else:
        line = mutation.old.rstrip("\r\n").replace("\\", "\\\\")
        script = f"{number - 1}a\\{line}" if number > 1 else f"1i\\{line}"
    return f"#!/bin/sh\nset -e\nsed -n '{first},{last}p' {path}\nsed -i {shlex.quote(script)} {path}\n"


def build_substitution(line: str, column: int, new: str, old: str) -> str:
    """sed's s command that puts `old` in place of `new` at this column of a line, with as much before it as it needs."""
    begin, end = column, column + len(new)
    while begin > 0 and (line.find(line[begin:end]) != begin or not line[begin - 1].isspace()):
        begin -= 1
    while end < len(line) and (line[end].isalnum() or line[end] in "_()"):
        end += 1
    return f"s/{_escape(line[begin:end], '.*[]^$')}/{_escape(line[begin:column] + old + line[column + len(new) : end], '&')}/"


def _escape(text: str, special: str) -> str:
    return "".join(f"\\{char}" if char in special + "/\\" else char for char in text)
