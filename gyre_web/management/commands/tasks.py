"""`manage.py tasks generate|import|check`: add task sets, and prove that their tasks can be won."""

import json
import os
import random
import time
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from environments.models import Rollout, Sandbox, Task, TaskSet
from environments.sandboxes import Sandboxes, get_sandboxes, nothing_prepared
from environments.starting import choose_kind
from environments.tasksets import InvalidImport, InvalidTask, generate_python_bugs, generate_taskset, import_tasks
from environments.tasksets.checks import CheckResult, check_tasks, kept_result
from environments.tasksets.python_bugs import NAME as PYTHON_BUGS
from environments.tasksets.python_bugs import GenerationError
from environments.tasksets.python_bugs.sources import SourceError

LOG_LINES = 12


class Command(BaseCommand):
    help = "Generate a built-in task set, import tasks in the Harbor layout, or check that tasks can be won."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        generate = actions.add_parser("generate", help="Write a built-in set: shell-and-python, or python-bugs.")
        generate.add_argument("set", nargs="?", default="shell-and-python")
        generate.add_argument(
            "--like", choices=("shell-and-python", PYTHON_BUGS), help="Which one, under another name."
        )
        generate.add_argument("--seed", type=int, default=1)
        generate.add_argument("--train", type=int, default=600, help="shell-and-python: number of training tasks.")
        generate.add_argument("--heldout", type=int, default=240, help="shell-and-python: number of held-out tasks.")
        generate.add_argument("--per-package", type=int, default=20, help="python-bugs: tasks of each package.")
        generate.add_argument("--package", action="append", default=[], help="python-bugs: only this one (repeatable).")
        add_jobs(generate)
        add = actions.add_parser("import", help="Add a directory or an archive (zip, tar, tar.gz, tar.zst) of tasks.")
        add.add_argument("path", type=Path)
        add.add_argument("--name", help="Name of the set; without it, that of the path.")
        add.add_argument("--description", default="")
        add.add_argument("--json", action="store_true")
        check = actions.add_parser(
            "check", help="Grade each task's solution and doing nothing; exit 1 if one is wrong."
        )
        check.add_argument("set", nargs="?")
        check.add_argument("--all", action="store_true", help="Every set.")
        check.add_argument(
            "--sandbox",
            choices=Rollout.Sandboxing.values,
            default=Rollout.Sandboxing.AUTO.value,
            help="auto, as in a rollout: docker for a task that needs an image or a network, else process.",
        )
        check.add_argument(
            "--resume", action="store_true", help="Take over what an earlier check found right; grade only the rest."
        )
        check.add_argument("--sample", type=int, default=0, help="Only so many tasks of a set, evenly drawn. 0: all.")
        check.add_argument("--json", action="store_true")
        add_jobs(check)

    def handle(self, *args: Any, **options: Any) -> None:
        {"generate": self.generate, "import": self.add, "check": self.check_sets}[options["action"]](options)

    # ---- generate, import

    def generate(self, options: dict[str, Any]) -> None:
        name = options["set"]
        if PYTHON_BUGS not in (options["like"], name):
            sizes = {"num_train": options["train"], "num_heldout": options["heldout"]}
            self._report(generate_taskset(name=name, seed=options["seed"], **sizes))
            return
        try:
            taskset = generate_python_bugs(
                name=name,
                seed=options["seed"],
                per_package=options["per_package"],
                packages=options["package"],
                jobs=options["jobs"],
                sandboxes=self._sandboxes(),
                say=self._say,
            )
        except (GenerationError, SourceError, InvalidTask, OSError) as error:
            raise CommandError(str(error)) from error
        self._report(taskset)

    def add(self, options: dict[str, Any]) -> None:
        path: Path = options["path"]
        name = options["name"] or path.resolve().name.partition(".")[0]
        try:
            imported = import_tasks(source=path, name=name, description=options["description"], say=self._say)
        except InvalidImport as error:
            if options["json"]:
                problems = [problem.__dict__ for problem in error.problems]
                self.stdout.write(json.dumps({"imported": False, "problems": problems}))
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{path} cannot be imported: {error}") from error
        taskset = imported.taskset
        if options["json"]:
            facts = {"set": taskset.name, "version": taskset.version, "digest": taskset.digest}
            facts |= {"imported": True, "is_new": imported.is_new, "tasks": taskset.tasks.count()}
            self.stdout.write(json.dumps(facts))
            return
        self._report(taskset)
        if not imported.is_new:
            self.stdout.write(f"These contents were there already, as {taskset.name}; nothing was changed.")

    def _report(self, taskset: TaskSet) -> None:
        self.stdout.write(f"{taskset.name}: {taskset.tasks.count()} tasks in {taskset.directory}")

    def _say(self, text: str) -> None:
        self.stderr.write(text)

    # ---- check

    def check_sets(self, options: dict[str, Any]) -> None:
        reports = [self._check_set(name, options) for name in choose_sets(options)]
        problems = sum(len(report["problems"]) for report in reports)
        if options["json"]:
            whole = {"name": "tasks check", "sets": reports, "ok": not problems}
            self.stdout.write(json.dumps(reports[0] | {"ok": not problems} if options["set"] else whole))
        else:
            self.stdout.write(build_table(reports))
        if problems:
            raise CommandError(f"{problems} problems in {', '.join(r['set'] for r in reports if r['problems'])}.")

    def _check_set(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        tasks = list(Task.objects.filter(taskset__name=name).order_by("name"))
        if options["sample"]:
            tasks = random.Random(0).sample(tasks, min(options["sample"], len(tasks)))
        wanted = options["sandbox"]
        kept = {task.pk: kept_result(task, wanted) for task in tasks} if options["resume"] else {}
        left = [task for task in tasks if kept.get(task.pk) is None]
        self._refuse_without_sandboxes({choose_kind(task, wanted) for task in left})
        started = time.monotonic()

        def say(result: CheckResult, done: int) -> None:
            if not result.is_good and not options["json"]:
                self._tell(result)
            if done % 50 == 0 or done == len(left):
                self._say(f"{name}: {done} of {len(left)} tasks, {time.monotonic() - started:.0f} s")

        with nothing_prepared():
            results = dict(
                zip([t.pk for t in left], check_tasks(left, wanted, jobs=options["jobs"], say=say), strict=True)
            )
        seconds = time.monotonic() - started
        return build_report(name, [kept.get(task.pk) or results[task.pk] for task in tasks], len(left), seconds)

    def _refuse_without_sandboxes(self, kinds: set[Sandbox.Kind]) -> None:
        """Where no kind that is needed works here; one that does is used, and the others' tasks are named."""
        reasons = [get_sandboxes(kind).check() for kind in sorted(kinds)]
        if reasons and all(reasons):
            raise CommandError(" ".join(filter(None, reasons)))

    def _tell(self, result: CheckResult) -> None:
        for problem in result.problems:
            self.stdout.write(f"{result.task}: {problem}")
        for line in result.log.splitlines()[-LOG_LINES:]:
            self.stdout.write(f"    {line[:200]}")

    def _sandboxes(self) -> Sandboxes:
        sandboxes = get_sandboxes(Sandbox.Kind.PROCESS)
        if reason := sandboxes.check():
            raise CommandError(reason)
        return sandboxes


def add_jobs(parser: ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="How many at once; the number of cores.")


def choose_sets(options: dict[str, Any]) -> list[str]:
    """Names of the sets to check. Raises CommandError."""
    known = list(TaskSet.objects.filter(tasks__isnull=False).distinct().values_list("name", flat=True))
    if options["all"] == bool(options["set"]):
        raise CommandError("Name one task set, or say --all.")
    wanted = known if options["all"] else [options["set"]]
    if not wanted or not set(wanted) <= set(known):
        missing = options["set"] or "at all"
        raise CommandError(f"There is no task set {missing} with tasks; known: {', '.join(known) or 'none yet'}.")
    return wanted


def build_report(name: str, results: list[CheckResult], num_graded: int, seconds: float) -> dict[str, Any]:
    """Raw figures of one set. solved: the solution earned 1; unwon: doing nothing earned less.

    sandboxes: tasks by the kind that they were graded in; "" could not be graded here. graded_now: of `tasks`, those
    that were not taken over from an earlier check; `seconds` is what they took.
    """
    return {
        "set": name,
        "tasks": len(results),
        "graded_now": num_graded,
        "sandboxes": dict(sorted(Counter(result.sandbox for result in results).items())),
        "solved": sum(result.solution == 1 for result in results),
        "unwon": sum(result.nothing is not None and result.nothing < 1 for result in results),
        "seconds": round(seconds, 1),
        "slowest_s": max((result.seconds for result in results), default=0.0),
        "problems": [f"{result.task}: {problem}" for result in results for problem in result.problems],
    }


def build_table(reports: list[dict[str, Any]]) -> str:
    head = ("set", "tasks", *Sandbox.Kind.values, "solution earns 1", "nothing earns less", "problems", "seconds")
    rows = [head]
    for report in reports:
        kinds = [report["sandboxes"].get(kind, 0) for kind in Sandbox.Kind.values]
        figures = (*kinds, report["solved"], report["unwon"], len(report["problems"]), report["seconds"])
        rows.append((report["set"], *map(str, (report["tasks"], *figures))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(lines)
