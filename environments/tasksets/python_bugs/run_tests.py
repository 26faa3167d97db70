"""Run a package's tests and write down what each of them did. Plain Python, no package is needed.

From:  explore.py (while tasks are made) and grade.py (when a work product is graded), both in a sandbox.
To:    a JSON file: {"passed": [name], "failed": {name: {"error", "message", "file", "line"}}, "skipped": [name]}.
Holds: understands unittest's classes and plain functions `test_*` without parameters. The standard library comes first
       on the path, so that nothing in the work tree can take its place.

    python3 -I -S -B run_tests.py SUITE.json RESULT.json      (working directory: the tree)

A line of standard input comes back as `token` in the result, so that whoever reads it knows who wrote it.
"""

import importlib
import inspect
import json
import os
import sys
import traceback
import unittest
from types import ModuleType, TracebackType
from typing import Any

MAX_MESSAGE = 1500
ErrorInfo = Any


class Record(unittest.TestResult):
    def __init__(self, test_roots: list[str]) -> None:
        super().__init__()
        self.test_roots = test_roots
        self.passed: set[str] = set()
        self.not_run: set[str] = set()
        self.broken: dict[str, dict[str, Any]] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed.add(test.id())

    def addError(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self._note(test.id(), err)

    def addFailure(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self._note(test.id(), err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: ErrorInfo) -> None:
        if err is not None:
            self._note(test.id(), err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.not_run.add(test.id())

    def addExpectedFailure(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self.not_run.add(test.id())

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.not_run.add(test.id())

    def _note(self, name: str, err: tuple[type[BaseException], BaseException, TracebackType]) -> None:
        kind, value, trace = err
        file, line = self._place(trace)
        try:
            message = str(value)
        except Exception:  # noqa: BLE001  its own __str__ may be what is broken
            message = ""
        self.broken.setdefault(
            name, {"error": kind.__name__, "message": message[:MAX_MESSAGE], "file": file, "line": line}
        )

    def _place(self, trace: TracebackType) -> tuple[str, int]:
        """The innermost line of the tests themselves."""
        here = os.getcwd() + os.sep
        found = ("", 0)
        for frame, line in traceback.walk_tb(trace):
            file = os.path.abspath(frame.f_code.co_filename)
            relative = file.removeprefix(here)
            if any(relative == root or relative.startswith(root + "/") for root in self.test_roots):
                found = (relative, line)
        return found

    def to_json(self) -> dict[str, Any]:
        passed = self.passed - set(self.broken) - self.not_run
        return {"passed": sorted(passed), "failed": self.broken, "skipped": sorted(self.not_run)}


class Function(unittest.FunctionTestCase):
    def __init__(self, name: str, function: Any) -> None:
        super().__init__(function)
        self.name = name

    def id(self) -> str:
        return self.name


def load_module(name: str) -> unittest.TestSuite:
    """Its classes, and its functions as tests of their own."""
    loader = unittest.TestLoader()
    try:
        module = importlib.import_module(name)
    except unittest.SkipTest:
        return unittest.TestSuite()
    except BaseException:  # noqa: BLE001  named by the loader as one failed test
        return loader.loadTestsFromName(name)
    suite = loader.loadTestsFromModule(module)
    suite.addTests(Function(f"{name}.{key}", function) for key, function in test_functions(module))
    return suite


def test_functions(module: ModuleType) -> list[tuple[str, Any]]:
    return [
        (key, value)
        for key, value in sorted(vars(module).items())
        if key.startswith("test_")
        and inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not inspect.signature(value).parameters
        and not inspect.iscoroutinefunction(value)
    ]


def main(suite_path: str, result_path: str) -> None:
    token = sys.stdin.readline().strip()
    with open(suite_path) as file:
        suite = json.load(file)
    sys.dont_write_bytecode = True
    sys.path += [os.path.abspath(entry) for entry in suite["path"]]
    record = Record(suite["tests"])
    with open(os.devnull, "w") as silence:
        sys.stdout = sys.stderr = silence
        for name in suite["modules"]:
            load_module(name).run(record)
    with open(result_path, "w") as file:
        json.dump(record.to_json() | {"token": token}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    os._exit(0)
