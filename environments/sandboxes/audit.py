"""Everything of sandboxes that this host has, against the rows that should account for it.

From:  `manage.py audit sandboxes`, tests and drills.
To:    one Entry a sandbox, by whatever trace there is of it: row, directory, process, container, kept image.
Never: ends or removes anything; that is the reaper's.
"""

import os
from dataclasses import dataclass

from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import engine_client
from environments.sandboxes.directory import host_name, root_directory
from environments.sandboxes.reaper import handle_of, is_ours, running_sandboxes


@dataclass(frozen=True, kw_only=True)
class Entry:
    """problem: why it should not be there; empty where all is well. traces: row, directory, process, container, image."""

    sandbox: str
    kind: str
    purpose: str
    owner: str
    age_s: float | None
    traces: tuple[str, ...]
    problem: str


def list_sandboxes() -> list[Entry]:
    traces = find_traces()
    rows = {str(row.id): row for row in Sandbox.objects.filter(host=host_name(), stopped_at=None)}
    known = {str(row.id): row for row in Sandbox.objects.filter(pk__in=[name for name in traces if name not in rows])}
    rows |= known
    return [build_entry(name, rows.get(name), traces.get(name, set())) for name in sorted({*traces, *rows})]


def find_traces() -> dict[str, set[str]]:
    """Sandbox id -> what there is of it on this host."""
    found: dict[str, set[str]] = {}
    root = root_directory()
    for name in os.listdir(root) if root.is_dir() else []:
        if is_ours(root / name):
            found.setdefault(name, set()).add("directory")
    for name in running_sandboxes():
        found.setdefault(name, set()).add("process")
    if engine_client.is_there():
        for kind, listed in (("container", engine_client.own_containers()), ("image", engine_client.own_images())):
            for thing in listed:
                found.setdefault(thing["Labels"].get(engine_client.SANDBOX, "none"), set()).add(kind)
    return found


def build_entry(name: str, row: Sandbox | None, traces: set[str]) -> Entry:
    now = timezone.now()
    kind = row.kind if row else "docker" if traces & {"container", "image"} else "process"
    return Entry(
        sandbox=name,
        kind=kind,
        purpose=row.purpose if row else "",
        owner=f"rollout {row.rollout_id}" if row and row.rollout_id else "nobody yet" if row else "no row",
        age_s=(now - row.created_at).total_seconds() if row else None,
        traces=tuple(sorted(traces | ({"row"} if row else set()))),
        problem=find_problem(row, traces),
    )


def find_problem(row: Sandbox | None, traces: set[str]) -> str:
    if row is None:
        return "orphan: no row speaks of it"
    if row.lease_expires_at < timezone.now():
        return "orphan: its lease ran out"
    if row.stopped_at is None and not traces:
        return "gone: its row says that it runs"
    if row.stopped_at is not None and "process" in traces and handle_of(row).is_alive():
        return "orphan: it runs, though its row says that it was stopped"
    return ""
