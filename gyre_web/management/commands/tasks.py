"""`manage.py tasks generate|import|check`: add task sets, and prove that their tasks can be won."""

import json
import random
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from environments.models import Sandbox, Task, TaskSet
from environments.sandboxes import get_sandboxes
from environments.tasksets import InvalidTaskSet, generate_taskset, import_taskset
from environments.tasksets.checks import check_task


class Command(BaseCommand):
    help = "Generate the built-in task set, import Harbor task directories, or check that tasks can be won."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        generate = actions.add_parser("generate", help="Write a generated set of shell and Python tasks.")
        generate.add_argument("set", nargs="?", default="shell-and-python")
        generate.add_argument("--seed", type=int, default=1)
        generate.add_argument("--train", type=int, default=600)
        generate.add_argument("--heldout", type=int, default=240)
        add = actions.add_parser("import", help="Add a directory that holds one Harbor task directory per task.")
        add.add_argument("set", help="Name of the new set.")
        add.add_argument("directory", type=Path)
        check = actions.add_parser("check", help="Run solution and nothing for each task; exit 1 where one is wrong.")
        check.add_argument("set")
        check.add_argument("--sample", type=int, default=0, help="Only so many tasks, evenly drawn. 0: all.")
        check.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        {"generate": self.generate, "import": self.add, "check": self.check_tasks}[options["action"]](options)

    def generate(self, options: dict[str, Any]) -> None:
        taskset = generate_taskset(
            name=options["set"], seed=options["seed"], num_train=options["train"], num_heldout=options["heldout"]
        )
        self._report(taskset)

    def add(self, options: dict[str, Any]) -> None:
        try:
            self._report(import_taskset(name=options["set"], directory=options["directory"]))
        except (InvalidTaskSet, OSError) as error:
            raise CommandError(str(error)) from error

    def check_tasks(self, options: dict[str, Any]) -> None:
        tasks = list(Task.objects.filter(taskset__name=options["set"]).order_by("name"))
        if not tasks:
            known = ", ".join(TaskSet.objects.values_list("name", flat=True)) or "none yet"
            raise CommandError(f"There is no task set {options['set']} with tasks; known: {known}.")
        if options["sample"]:
            tasks = random.Random(0).sample(tasks, min(options["sample"], len(tasks)))
        sandboxes = get_sandboxes(Sandbox.Kind.PROCESS)
        reason = sandboxes.check()
        if reason:
            raise CommandError(reason)

        def check(task: Task) -> list[str]:
            try:
                return check_task(task, sandboxes)
            finally:
                connection.close()

        with ThreadPoolExecutor(max_workers=2) as pool:
            problems = [problem for found in pool.map(check, tasks) for problem in found]
        if options["json"]:
            self.stdout.write(json.dumps({"set": options["set"], "tasks": len(tasks), "problems": problems}))
        else:
            self.stdout.write("\n".join([*problems, f"{len(tasks)} tasks checked, {len(problems)} problems."]))
        if problems:
            raise CommandError(f"{len(problems)} problems in {options['set']}.")

    def _report(self, taskset: TaskSet) -> None:
        self.stdout.write(f"{taskset.name}: {taskset.tasks.count()} tasks in {taskset.directory}")
