"""`manage.py dataset NAME --filter reward_min=1`: freeze a selection of rollouts, or of judged pairs, for runs to train on."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gyre_web.accounts.models import User
from gyre_web.exports import items
from gyre_web.runs.rollout_filter import NAMES
from gyre_web.up.demo import running_urls
from gyre_web.up.supervisor import adopt_urls
from training.datasets import DatasetError, describe_left_out
from training.models import Dataset, Run


class Command(BaseCommand):
    help = "Freeze a selection: rollouts of a filter, or judged pairs. Runs name it as their data set."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="Name of the data set.")
        parser.add_argument("--kind", choices=Dataset.Kind.values, default=Dataset.Kind.ROLLOUTS)
        parser.add_argument("--run", help="Only of the run with this name.")
        parser.add_argument(
            "--filter", action="append", default=[], metavar="FIELD=VALUE", help=f"Any of: {', '.join(NAMES)}."
        )

    def handle(self, **options: Any) -> None:
        if not settings.DATABASE_URL:
            urls = running_urls()
            if urls is None:
                raise CommandError("Nothing runs here. Start it with `manage.py up`, or set DATABASE_URL.")
            adopt_urls(urls)
        run = Run.objects.filter(name=options["run"]).first() if options["run"] else None
        if options["run"] and run is None:
            raise CommandError(f"There is no run called {options['run']!r}.")
        choice = items.build_choice(parse_filters(options["filter"]), run)
        try:
            made = items.make_dataset(name=options["name"], kind=options["kind"], choice=choice, author=admin())
        except (DatasetError, items.WrongFilter) as error:
            raise CommandError(str(error)) from error
        left = f"; left out: {describe_left_out(made.left_out)}" if made.left_out else ""
        self.stdout.write(f"{made.dataset.name}: {made.dataset.num_items} items{left}")


def parse_filters(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in NAMES:
            raise CommandError(f"{text!r} is no FIELD=VALUE. Fields: {', '.join(NAMES)}.")
        found[name] = value
    return found


def admin() -> User:
    """Whoever may use the command line is taken for the first admin."""
    user = User.objects.filter(role=User.Role.ADMIN).order_by("date_joined").first()
    if user is None:
        raise CommandError("There is no admin yet. `manage.py up` makes one at its first start.")
    return user
