"""`manage.py migrate`: Django's own, which first refuses a database of an earlier pre-release.

Until 0.1.0 each app has one migration that is rewritten whenever a model changes (docs/decisions/0003). A database that
an earlier checkout made says that it is up to date and lacks columns. Its tables therefore carry a digest of the
migrations that made them, as a comment on `django_migrations`.
"""

import hashlib
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections


def schema_digest() -> str:
    """Of all migrations, without their first lines, which only say when they were written."""
    texts = []
    for root in ("environments", "training", "gyre_web"):
        for path in sorted((Path(settings.BASE_DIR) / root).rglob("migrations/0001_initial.py")):
            texts.append("".join(line for line in path.read_text().splitlines(keepends=True) if line[0] != "#"))
    return "gyre " + hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('django_migrations')::oid, to_regclass('environments_rollout')::oid")
            table, filled = cursor.fetchone()
            cursor.execute("SELECT obj_description(%s, 'pg_class')", [table])
            [found] = cursor.fetchone()
        if filled and found != schema_digest():
            raise CommandError(
                "This database was made by an earlier pre-release of Gyre, and its tables cannot be brought up to date. "
                "Start with a new one: name another directory in GYRE_DATA, or another database in DATABASE_URL."
            )
        super().handle(*args, **options)
        with connection.cursor() as cursor:
            cursor.execute(f"COMMENT ON TABLE django_migrations IS '{schema_digest()}'")
