"""Make an export: the row first, then its job.

From:  gyre_web.exports and REST, after rights were checked and a filter was resolved to items.
To:    Export rows; training.jobs.write_export.
"""

from typing import Any

from django.db import transaction

from training.models import Export

MOST_ITEMS = 200_000


class ExportRefused(ValueError):
    """field: what of the form or the request is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def make_export(
    *, name: str, form: str, items: list[dict[str, Any]], query: dict[str, Any], made_by: str = ""
) -> Export:
    """items: frozen now; the job reads their rollouts later. Raises ExportRefused."""
    if form not in Export.Format.values:
        raise ExportRefused("format", f"Use one of {', '.join(Export.Format.values)}.")
    name = name.strip()
    if not name or len(name) > 120:
        raise ExportRefused("name", "Give it a name of at most 120 characters.")
    if not items:
        pairs = form == Export.Format.DPO
        raise ExportRefused(
            "filter", "No judged pair matches; judge some in Compare." if pairs else "No ended rollout matches."
        )
    if len(items) > MOST_ITEMS:
        raise ExportRefused("filter", f"{len(items)} items are too many; narrow the filter to at most {MOST_ITEMS}.")
    with transaction.atomic():
        export = Export.objects.create(
            name=name, format=form, items=items, total=len(items), query=query, made_by=made_by
        )
        transaction.on_commit(lambda: enqueue(export), robust=True)
    return export


def enqueue(export: Export) -> None:
    from training.jobs import write_export

    write_export.delay(str(export.pk))
