"""The background job of an export: from its row to a zip with data and provenance.

From:  training.jobs.write_export (Celery); the controller sends it again while nobody holds the row's lease.
To:    <DATA_DIR>/exports/<id>.zip; progress in the row.
Holds: one writer an export (lease, renewed with the progress); a file under its final name is complete; a worker that
       dies leaves a row that the next one starts afresh; a failure names its cause and leaves no file.
"""

import logging
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connection
from django.db.models import Q
from django.utils import timezone

from training.checkpoints import is_full, sync
from training.exports.formats import LINES, NoLine, dpo_line
from training.exports.record import RolloutRecord, load_record
from training.exports.trajectory import build_trajectory
from training.models import Export
from training.provenance import build_provenance

log = logging.getLogger(__name__)
LEASE = timedelta(seconds=60)
EVERY = 20
"""Items between two notes of progress."""
MAX_BRANCHES = 1000


class LeaseLost(Exception):
    """Another writer has the export."""


def export_path(export_id: UUID) -> Path:
    return Path(settings.DATA_DIR) / "exports" / f"{export_id}.zip"


def take(export_id: UUID, owner: str) -> Export | None:
    """The row, if nobody holds it and it is not over."""
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    waiting = Export.objects.filter(free, pk=export_id, state__in=(Export.State.QUEUED, Export.State.WRITING))
    taken = waiting.update(
        state=Export.State.WRITING, lease_owner=owner, lease_expires_at=now + LEASE, done=0, left_out={}
    )
    return Export.objects.get(pk=export_id) if taken else None


def waiting_exports() -> list[UUID]:
    """What should be written and nobody writes: its job, or its writer, was lost."""
    now = timezone.now()
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=now)
    rows = Export.objects.filter(free, state__in=(Export.State.QUEUED, Export.State.WRITING))
    return list(rows.filter(created_at__lt=now - timedelta(seconds=5)).values_list("pk", flat=True)[:100])


def write_export(export_id: UUID, *, owner: str) -> None:
    export = take(export_id, owner)
    if export is None:
        return
    path = export_path(export.pk)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        left_out = write_zip(export, part, owner)
        sync(part)
        part.replace(path)
        sync(path.parent)
        end(export, owner, state=Export.State.DONE, path=str(path), size_bytes=path.stat().st_size, left_out=left_out)
    except LeaseLost:
        log.warning("export was taken over", extra={"export": str(export_id)})
    except OSError as error:
        what = "there is no room for the file" if is_full(error) else str(error)
        end(export, owner, state=Export.State.FAILED, error=f"Not written: {what}. Free some space and make it again.")
    except Exception as error:  # the boundary of the job: a fault in one record must not make it be tried for ever
        log.exception("export failed", extra={"export": str(export_id)})
        why = f"{type(error).__name__}: {error}"[:400]
        end(export, owner, state=Export.State.FAILED, error=f"Not written: {why}. Report it with the export's filter.")
    finally:
        part.unlink(missing_ok=True)
        if not connection.in_atomic_block:
            connection.close()


def write_zip(export: Export, part: Path, owner: str) -> dict[str, int]:
    """returns how many items gave no line, by reason."""
    left_out: Counter[str] = Counter()
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6, allowZip64=True) as archive:
        if export.format == Export.Format.ATIF:
            for item in progress(export, owner):
                try:
                    text = orjson.dumps(build_trajectory(need(item["rollout"]), item), option=orjson.OPT_INDENT_2)
                    archive.writestr(f"trajectories/{item['rollout']}.json", text)
                except NoLine as why:
                    left_out[str(why)] += 1
        else:
            with archive.open("data.jsonl", "w", force_zip64=True) as stream:
                for item in progress(export, owner):
                    try:
                        for line in lines_of(export.format, item):
                            stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                    except NoLine as why:
                        left_out[str(why)] += 1
        archive.writestr(
            "provenance.json", orjson.dumps(describe(export, left_out), option=orjson.OPT_INDENT_2, default=str)
        )
    return dict(left_out)


def lines_of(form: str, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if form == Export.Format.DPO:
        yield dpo_line(need(item["chosen"]), need(item["rejected"]), item)
    else:
        yield from LINES[form](need(item["rollout"]), item)


def need(rollout_id: str) -> RolloutRecord:
    record = load_record(UUID(rollout_id), max_branches=MAX_BRANCHES)
    if record is None:
        raise NoLine("the rollout was deleted")
    return record


def progress(export: Export, owner: str) -> Iterator[dict[str, Any]]:
    """The items, noting every few how far it is. Raises LeaseLost."""
    for number, item in enumerate(export.items):
        if number % EVERY == 0:
            renew(export, owner, number)
        yield item
    renew(export, owner, len(export.items))


def renew(export: Export, owner: str, done: int) -> None:
    mine = Export.objects.filter(pk=export.pk, lease_owner=owner, state=Export.State.WRITING)
    if not mine.update(done=done, lease_expires_at=timezone.now() + LEASE):
        raise LeaseLost


def end(export: Export, owner: str, **fields: Any) -> None:
    Export.objects.filter(pk=export.pk, lease_owner=owner).update(
        **fields, ended_at=timezone.now(), lease_expires_at=None, lease_owner=""
    )


def describe(export: Export, left_out: dict[str, int]) -> dict[str, Any]:
    """What is in the file and where it comes from."""
    return {
        "made_by": "gyre",
        "name": export.name,
        "format": export.format,
        "person": export.made_by,
        "created_at": export.created_at,
        "filter": export.query,
        "num_items": len(export.items),
        "left_out": left_out,
        "software": build_provenance(),
    }
