"""`manage.py models add NAME PATH`: add a Hugging Face model and put its renderer to the proof; `models list`, `models check`."""

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from environments.catalog import ModelError, add_model
from environments.models import Model
from gyre_web.up.demo import running_urls
from gyre_web.up.supervisor import adopt_urls


class Command(BaseCommand):
    help = "Add a model by directory or hub name, check one again, or list them."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="Add a model; its renderer is checked.")
        add.add_argument("name", help="How runs will call it.")
        add.add_argument("path", help="Directory, or hub name like owner/name.")
        add.add_argument("--renderer", default="", help="chatml, whole or renderers:<family>; empty: chosen.")
        check = verbs.add_parser("check", help="Look at its files and prove its renderer once more.")
        check.add_argument("name")
        verbs.add_parser("list", help="All models, one a line.")
        for verb in (add, check):
            verb.add_argument("--json", action="store_true", help="Print the report as JSON.")

    def handle(self, **options: Any) -> None:
        if not settings.DATABASE_URL:
            urls = running_urls()
            if urls is None:
                raise CommandError("Nothing runs here. Start it with `manage.py up`, or set DATABASE_URL.")
            adopt_urls(urls)
        if options["verb"] == "list":
            for model in Model.objects.all():
                self.stdout.write(f"{model.name}\t{model.renderer}\t{model.context_length}\t{model.path}")
            return
        name, path, renderer = options["name"], str(options.get("path") or ""), str(options.get("renderer") or "")
        if options["verb"] == "check":
            known = Model.objects.filter(name=name).first()
            if known is None:
                raise CommandError(f"There is no model {name!r}. `manage.py models list` names them.")
            path, renderer = known.path, known.renderer
        try:
            model = add_model(name, path, renderer)
        except ModelError as error:
            raise CommandError(f"{error.field}: {error}") from error
        report = model.settings["report"]
        if options["json"]:
            self.stdout.write(json.dumps(report, indent=1))
            return
        self.stdout.write(f"{model.name}: renderer {model.renderer}, {model.context_length} tokens of context")
        for check in report["checks"]:
            self.stdout.write(f"  {check['verdict']:<9} {check['right']}/{check['tried']:<4} {check['words']}")
            if check["first"]:
                self.stdout.write(f"            {check['first']} {check['remedy']}")
