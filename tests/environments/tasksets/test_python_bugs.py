"""One small mistake in a real package: found by position, noticed by its tests, told without its place, undone by sed."""

import ast
import io
import json
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from environments.sandboxes import get_sandboxes
from environments.tasksets.harbor import digest_directory, read_task
from environments.tasksets.python_bugs import making, sources, writing
from environments.tasksets.python_bugs.making import (
    GenerationError,
    build_suite,
    choose_split,
    make_tasks,
    order_candidates,
)
from environments.tasksets.python_bugs.mutations import KINDS, Mutation, find_mutations
from environments.tasksets.python_bugs.sources import Source, SourceError, fetch, load_sources, read_package
from environments.verification import Assessment, Verdict, verify

MODULE = '''"""A module."""


class Stack:
    def __init__(self, items):
        self.items = list(items)
        self.size = len(self.items)

    def peek(self, default=None):
        """The last item."""
        if not self.items:
            return default
        return self.items[-1]


def clamp(value, low, high):
    if value < low:
        return low
    if value > high and high is not None:
        return high
    return value


def middle(low, high):
    return low + (high - low) // 2


def join(words, sep="é, "):
    text = sep.join(words)
    return text.replace("a", "b")


def half(value):
    return max(divmod(value, 2))
'''
TESTS = """import unittest

from small import Stack, clamp, half, join, middle


class SmallTest(unittest.TestCase):
    def test_peek(self):
        self.assertEqual(Stack([1, 2]).peek(), 2)
        self.assertEqual(Stack([]).peek(7), 7)
        self.assertEqual(Stack([1]).size, 1)

    def test_clamp(self):
        for value, low, high, wanted in ((1, 2, 3, 2), (5, 2, 3, 3), (2, 2, 3, 2)):
            with self.subTest(value=value):
                self.assertEqual(clamp(value, low, high), wanted)

    def test_middle(self):
        self.assertEqual(
            middle(10, 20),
            15,
        )

    @unittest.skip("not today")
    def test_skipped(self):
        pass

    def test_broken_from_the_start(self):
        self.fail("always")


def test_join():
    assert join(["a", "c"]) == "bé, c"


def test_half():
    assert half(4) == 2
"""
FILES = {
    "LICENSE": b"free\n",
    "src/small.py": MODULE.encode(),
    "tests/__init__.py": b"",
    "tests/test_small.py": TESTS.encode(),
}


def pack(path: Path, files: dict[str, bytes], top: str = "small-1.0") -> bytes:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path.read_bytes()


@pytest.fixture
def source(tmp_path, monkeypatch) -> Source:
    """A package of our own in the cache, as pip would have left it there."""
    import hashlib

    cache = tmp_path / "cache" / "sdists"
    cache.mkdir(parents=True)
    data = pack(cache / "small-1.0.tar.gz", FILES)
    made = Source(
        name="small",
        version="1.0",
        sdist="small-1.0.tar.gz",
        sha256=hashlib.sha256(data).hexdigest(),
        licence="MIT",
        code=("src",),
        tests=("tests",),
        path=("src", "."),
    )
    monkeypatch.setattr(making, "load_sources", lambda only: [made])
    return made


# Mutations.


def test_each_kind_of_mutation_is_found_and_stays_python():
    found = find_mutations("src/small.py", MODULE.encode())
    assert {mutation.kind for mutation in found} == set(KINDS)
    for mutation in found:
        mutated = writing.apply(mutation, MODULE.encode())
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(MODULE)), mutation


@pytest.mark.parametrize(
    ("function", "kind", "old", "new"),
    [
        ("clamp", "comparison", "<", "<="),
        ("clamp", "comparison", "is not", "is"),
        ("clamp", "boolean", "and", "or"),
        ("middle", "arithmetic", "//", "*"),
        ("middle", "off-by-one", "2", "3"),
        ("Stack.peek", "condition", "not self.items", "self.items"),
        ("half", "swapped-arguments", "value, 2", "2, value"),
        ("Stack.__init__", "dropped-line", "        self.size = len(self.items)\n", ""),
    ],
)
def test_a_mutation_changes_exactly_what_it_says(function, kind, old, new):
    found = find_mutations("f.py", MODULE.encode())
    assert (function, kind, old, new) in {(m.function, m.kind, m.old, m.new) for m in found}


def test_no_docstring_no_text_and_no_default_is_mutated():
    found = find_mutations("f.py", b'def f(a=1):\n    """Sum 1 < 2."""\n    x = "a" + a + "b"\n    return "%d" % x\n')
    assert [(m.kind, m.old) for m in found] == [
        ("dropped-line", '    x = "a" + a + "b"\n'),
        ("dropped-line", '    return "%d" % x\n'),
    ]


def test_columns_are_bytes_so_that_accents_before_a_mutation_do_no_harm():
    data = 'def f(a):\n    return "é" if a < 2 else "ü"\n'.encode()
    (mutation,) = [m for m in find_mutations("f.py", data) if m.kind == "comparison"]
    assert writing.apply(mutation, data).decode() == 'def f(a):\n    return "é" if a <= 2 else "ü"\n'


def test_kinds_take_turns_and_the_seed_decides(source):
    first = order_candidates(source, FILES, 1)
    assert [m.kind for m in first[:7]] == list(KINDS)
    assert first == order_candidates(source, FILES, 1)
    assert first != order_candidates(source, FILES, 2)


def test_tests_are_never_mutated(source):
    assert {m.file for m in order_candidates(source, FILES, 1)} == {"src/small.py"}


def test_all_tasks_of_one_function_are_in_one_split(source):
    def mutation(function: str, start: int) -> Mutation:
        return Mutation(file="a", function=function, kind="x", line=1, start=start, end=2, old="", new="")

    splits = {f"f{n}": {choose_split(source, mutation(f"f{n}", s)) for s in range(5)} for n in range(40)}
    assert all(len(found) == 1 for found in splits.values())
    assert set().union(*splits.values()) == {"train", "heldout"}


# Solutions.


def test_the_solution_of_every_mutation_restores_the_file(tmp_path):
    tricky = (
        MODULE
        + "\n\ndef odd(a, b):\n    x = a[0] * b  # a\\n & / | 'quoted' $1 ^.*\n    return x - 1 if a < b < 3 else x - 1\n"
    )
    for index, mutation in enumerate(find_mutations("src/s.py", tricky.encode())):
        mutated = writing.apply(mutation, tricky.encode())
        root = tmp_path / str(index)
        (root / "src").mkdir(parents=True)
        (root / "src" / "s.py").write_bytes(mutated)
        (root / "solve.sh").write_text(writing.build_solution(mutation, tricky.encode(), mutated))
        subprocess.run(["sh", "solve.sh"], cwd=root, check=True, capture_output=True)
        assert (root / "src" / "s.py").read_text() == tricky, mutation


# The whole way.


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.django_db(transaction=True)
def test_tasks_of_a_package_are_made_checked_and_the_same_each_time(source, tmp_path, settings):
    from environments.models import Task
    from environments.tasksets.checks import check_tasks
    from environments.tasksets.publishing import publish

    settings.DATA_DIR = tmp_path / "data"
    tmp_path.chmod(0o755)
    options = {"sandboxes": get_sandboxes("process"), "seed": 1, "per_package": 6}
    for side in ("a", "b"):
        cache = tmp_path / side / "cache"
        (cache / "sdists").mkdir(parents=True)
        (cache / "sdists" / source.sdist).write_bytes((tmp_path / "cache" / "sdists" / source.sdist).read_bytes())
        assert make_tasks(tmp_path / side / "set", cache=cache, **options) == 6
    assert digest_directory(tmp_path / "a" / "set") == digest_directory(tmp_path / "b" / "set")
    for path in (tmp_path / "a" / "set").iterdir():
        check_written(path, source)

    (tmp_path / "data" / "tasksets").mkdir(parents=True)
    ready = (tmp_path / "a" / "set").rename(tmp_path / "data" / "tasksets" / ".ready")
    publish(base_name="bugs", directory=ready, source="generated:python-bugs", description="")
    results = check_tasks(list(Task.objects.all()), jobs=2)
    assert [(result.nothing, result.solution, result.problems) for result in results] == [(0.0, 1.0, ())] * 6


def check_written(path: Path, source: Source) -> None:
    """The instruction speaks of tests alone; the mutated line is the only difference; originals of the tests are kept."""
    task = read_task(path)
    required = json.loads((path / "tests" / "required.json").read_text())
    assert required["failing_before"]
    assert not any(
        "broken_from_the_start" in name or "skipped" in name for names in required.values() for name in names
    )
    assert "small.py" not in task.instruction
    assert required["failing_before"][0] in task.instruction
    patch = (path / "solution" / "fix.patch").read_text()
    changed = [line for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert 1 <= len(changed) <= 2
    work = path / "environment" / "work"
    assert (work / "tests" / "test_small.py").read_text() == TESTS
    assert (path / "tests" / "pristine" / "tests" / "test_small.py").read_text() == TESTS
    assert (work / "LICENSE").is_file()
    assert task.raw["metadata"]["licence"] == source.licence


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.django_db(transaction=True)
def test_a_package_that_writes_its_own_result_or_cannot_be_read_earns_nothing(source, tmp_path, settings):
    settings.DATA_DIR = tmp_path / "data"
    tmp_path.chmod(0o755)
    sandboxes = get_sandboxes("process")
    make_tasks(tmp_path / "set", cache=tmp_path / "cache", sandboxes=sandboxes, seed=1, per_package=1)
    (task,) = (tmp_path / "set").iterdir()
    required = json.loads((task / "tests" / "required.json").read_text())
    forged = json.dumps({"passed": [name for names in required.values() for name in names], "failed": {}, "token": ""})
    program = f"import os, sys\nopen(sys.argv[2], 'w').write({forged!r})\nos._exit(0)\n"
    for name, text in (("forged", program), ("plain", "")):
        work = tmp_path / name
        subprocess.run(["cp", "-r", str(task / "environment" / "work"), str(work)], check=True)
        (work / "src" / "small.py").write_text(text)
        assert grade(task, work).reward == 0.0


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.django_db(transaction=True)
def test_weakened_tests_and_a_false_standard_library_earn_nothing_and_are_named(source, tmp_path, settings):
    settings.DATA_DIR = tmp_path / "data"
    tmp_path.chmod(0o755)
    sandboxes = get_sandboxes("process")
    make_tasks(tmp_path / "set", cache=tmp_path / "cache", sandboxes=sandboxes, seed=1, per_package=1)
    (task,) = (tmp_path / "set").iterdir()
    work = tmp_path / "left"
    subprocess.run(["cp", "-r", str(task / "environment" / "work"), str(work)], check=True)
    (work / "tests" / "test_small.py").write_text("")
    (work / "unittest.py").write_text("raise SystemExit(0)\n")
    verdict = grade(task, work)

    assert verdict.reward == 0.0
    assert "changed by the agent, not used: tests/test_small.py" in verdict.log
    assert verdict.parts["kept"] == 1.0


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.django_db(transaction=True)
def test_a_package_that_gives_too_few_tasks_ends_the_generation_with_its_reasons(source, tmp_path, settings):
    settings.DATA_DIR = tmp_path / "data"
    tmp_path.chmod(0o755)
    with pytest.raises(GenerationError, match=r"small 1\.0 gives only \d+ tasks of 500 .*--per-package"):
        make_tasks(
            tmp_path / "set", cache=tmp_path / "cache", sandboxes=get_sandboxes("process"), seed=1, per_package=500
        )


def grade(task: Path, work: Path) -> Verdict:
    assessment = Assessment(
        rollout_id=None,
        task_directory=task,
        work_tree=work,
        environment=read_task(task).settings.verifier.env,
        limits=making.LIMITS,
        deadline_s=60.0,
    )
    return verify(assessment, get_sandboxes("process"), threading.Event())


# Packages.


def test_an_archive_with_another_digest_is_not_used(source, tmp_path):
    path = tmp_path / "cache" / "sdists" / source.sdist
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(SourceError, match="sha256"):
        fetch(source, path.parent)
    assert not path.exists()


def test_only_what_a_task_needs_is_read_from_a_package_and_no_link(source, tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name in (
            "small-1.0/src/small.py",
            "small-1.0/tests/test_small.py",
            "small-1.0/docs/x.txt",
            "small-1.0/../../up",
        ):
            archive.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo("small-1.0/src/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert list(read_package(source, (tmp_path / "a.tar.gz").read_bytes())) == ["src/small.py", "tests/test_small.py"]


def test_recorded_packages_are_pinned_licensed_and_enough():
    found = load_sources()
    assert len(found) >= 10
    assert len({source.name for source in found}) == len(found)
    for source in found:
        assert len(source.sha256) == 64
        assert source.licence
        assert source.version in source.sdist
    with pytest.raises(SourceError, match="there are: aniso8601"):
        load_sources(["nothing"])


def test_modules_of_tests_are_named_from_the_path(source):
    assert build_suite(source, FILES) == {"path": ["src", "."], "modules": ["tests.test_small"], "tests": ["tests"]}


def test_a_failing_statement_is_told_whole_but_not_what_it_holds():
    assert sources.is_below("tests/a.py", ["tests"])
    line = TESTS.split("\n").index("            middle(10, 20),") + 1
    assert writing.find_statement(TESTS.encode(), line) == "self.assertEqual(\n    middle(10, 20),\n    15,\n)"
    assert writing.find_statement(b"def f():\n    with a:\n        b()\n", 2) == "with a:"
