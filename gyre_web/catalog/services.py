"""Change the catalog: add a harness.

Holds: a harness is never changed once it is there: recorded rollouts refer to it. Another setting is another harness.
"""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction

from environments.harnesses import HARNESSES, HarnessMissing, InvalidHarness, check_settings
from environments.models import Harness
from gyre_web.accounts.models import User
from gyre_web.audit.services import record

MAX_NAME = 100


@transaction.atomic
def add_harness(*, user: User, name: str, program: str, delivery: str, settings: dict[str, Any]) -> Harness:
    """Raises InvalidHarness with every wrong field."""
    problems = check_name(name) + check_delivery(delivery)
    try:
        check_settings(program, settings)
    except InvalidHarness as error:
        problems += error.problems
    version = ""
    try:
        version = HARNESSES[program].version() if program in HARNESSES else ""
    except HarnessMissing as error:
        problems.append(("program", str(error)))
    if problems:
        raise InvalidHarness(name or program, problems)
    harness = Harness.objects.create(name=name, program=program, version=version, delivery=delivery, settings=settings)
    record(user, "harness.add", harness, after={"name": name, "program": program, "settings": settings})
    return harness


def check_name(name: str) -> list[tuple[str, str]]:
    try:
        validate_slug(name)
    except ValidationError:
        return [("name", "Use letters, digits, - and _ only, at least one.")]
    if len(name) > MAX_NAME:
        return [("name", f"Use at most {MAX_NAME} characters.")]
    if Harness.objects.filter(name=name).exists():
        return [("name", "There is a harness of this name; a harness is not changed, take another name.")]
    return []


def check_delivery(delivery: str) -> list[tuple[str, str]]:
    known = [value for value, _ in Harness._meta.get_field("delivery").choices or ()]
    return [] if delivery in known else [("delivery", f"Choose one of {', '.join(map(str, known))}.")]
