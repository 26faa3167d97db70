"""What takes room and has not been wanted for a while: images, what is known of images, bundles of agent programs.

From:  `manage.py images prune`.
To:    a Stale for each; `remove` takes it away.
Holds: only what Gyre made or pulled here, and never what is in use: what a sandbox of this host has mounted or runs from,
       what any container of the engine was made from, what is being made, what was wanted within MIN_AGE_S. What is
       removed and wanted again is made again.
Never: removes an image that was on the host before Gyre was asked for it.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import docker.errors
from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from environments.harnesses.runtimes import root_directory as bundles_directory
from environments.models import Image, Sandbox
from environments.sandboxes.directory import host_name
from environments.sandboxes.engine_client import client, errors, short, why_unreachable
from environments.sandboxes.protocol import SandboxError

MIN_AGE_S = 3600.0
"""What was wanted more recently may be on its way into a sandbox."""

Kind = Literal["image", "record", "facts", "bundle"]


@dataclass(frozen=True, kw_only=True)
class Stale:
    """kind: an image; the record of one that could not be made, or is gone; what is known of an image that is gone; a
    bundle or its runtime. key: the Image's id, or a path. wanted_at: when somebody last wanted it."""

    kind: Kind
    name: str
    key: str
    size_bytes: int
    wanted_at: datetime | None


def find_stale(unused: timedelta) -> list[Stale]:
    """Largest first; where no container engine answers, bundles alone. Raises SandboxError where it stops answering."""
    before = timezone.now() - max(unused, timedelta(seconds=MIN_AGE_S))
    found = [*_find_bundles(before)]
    if why_unreachable() is None:
        found += [*_find_images(before), *_find_facts(before)]
    return sorted(found, key=lambda stale: (-stale.size_bytes, stale.name))


def remove(stale: Stale) -> str:
    """Why it stays; empty where it is gone. It is looked at again: somebody may have wanted it meanwhile."""
    if stale.kind in ("image", "record"):
        return _remove_image(stale)
    path = Path(stale.key)
    if stale.kind == "bundle" and path.name in mounted_bundles():
        return "in use by a sandbox"
    if not path.is_dir() or _modified_at(path) != stale.wanted_at:
        return "wanted meanwhile"
    aside = path.with_name(f".gone-{secrets.token_hex(4)}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    return ""


# ---- images


def _find_images(before: datetime) -> Iterator[Stale]:
    used = used_images()
    for row in _unwanted(before):
        found = _inspect(row)
        if found is None:
            yield _stale("record", row, 0)
        elif (row.origin != Image.Origin.NAMED or row.is_pulled) and row.image_id not in used:
            yield _stale("image", row, int(found.get("Size") or 0))


def _unwanted(before: datetime) -> Any:
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lt=timezone.now())
    return Image.objects.filter(free, host=host_name(), last_used_at__lt=before).defer("log")


def _stale(kind: Kind, row: Image, size_bytes: int) -> Stale:
    return Stale(kind=kind, name=row.reference, key=str(row.pk), size_bytes=size_bytes, wanted_at=row.last_used_at)


def _inspect(row: Image) -> dict[str, Any] | None:
    """What the engine has of it."""
    if not row.image_id:
        return None
    with errors("look for an image"):
        try:
            found: dict[str, Any] = client().inspect_image(row.image_id)
            return found
        except docker.errors.ImageNotFound:
            return None


def used_images() -> set[str]:
    """Ids that open sandboxes of this host run from, or that a container was made from, whoever's it is."""
    mine = Sandbox.objects.filter(host=host_name(), stopped_at=None).exclude(image="").values_list("image", flat=True)
    with errors("list containers"):
        containers = client().containers(all=True)
    found = {*mine, *(str(container["ImageID"]) for container in containers)}
    return found | {parent for image in found for parent in _ancestors(image)}


def _ancestors(image: str) -> Iterator[str]:
    """Ids of the images that it was made from, where the engine still knows them: a kept sandbox's task image."""
    with contextlib.suppress(docker.errors.DockerException):
        yield from (str(layer["Id"]) for layer in client().history(image) if layer["Id"].startswith("sha256:"))


def _remove_image(stale: Stale) -> str:
    row = Image.objects.filter(pk=stale.key, last_used_at=stale.wanted_at).first()
    if row is None:
        return "wanted meanwhile"
    if stale.kind == "image" and row.image_id in used_images():
        return "in use by a container"
    try:
        with contextlib.suppress(docker.errors.ImageNotFound):
            if stale.kind == "image":
                client().remove_image(row.reference)  # without force: the engine refuses what it needs
    except docker.errors.APIError as error:
        return short(error)
    Image.objects.filter(pk=row.pk, last_used_at=stale.wanted_at, lease_expires_at=row.lease_expires_at).delete()
    return ""


# ---- what is known of images


def _find_facts(before: datetime) -> Iterator[Stale]:
    """Facts whose image the engine does not have any more."""
    root = Path(settings.DATA_DIR) / "image-facts"
    with errors("list images"):
        there = {str(found["Id"]).removeprefix("sha256:")[:32] for found in client().images(all=True)}
    for path in _directories(root):
        if path.name not in there and _modified_at(path) < before:
            yield _from_path("facts", path)


# ---- bundles


def _find_bundles(before: datetime) -> Iterator[Stale]:
    """`bundles.find` stamps a bundle, and the runtimes that it needs, whenever it is wanted."""
    used = mounted_bundles()
    for path in _directories(bundles_directory()):
        if path.name not in used and _modified_at(path) < before:
            yield _from_path("bundle", path)


def mounted_bundles() -> set[str]:
    """Names of bundles that a sandbox of this host has mounted now."""
    found: set[str] = set()
    for handle in Sandbox.objects.filter(host=host_name(), stopped_at=None).values_list("handle", flat=True):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{int(handle.get('pid') or 0)}/mountinfo").read_text().splitlines():
                source = Path(line.split(" ")[3])
                if source.parent.name == bundles_directory().name:
                    found.add(source.name)
    return found


def _directories(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir()) if root.is_dir() else []:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield entry


def _modified_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, tz=timezone.get_default_timezone())


def _from_path(kind: Kind, path: Path) -> Stale:
    size = sum(
        entry.lstat().st_blocks * 512
        for directory, _, names in os.walk(path)
        for entry in (Path(directory) / name for name in names)
    )
    return Stale(kind=kind, name=path.name, key=str(path), size_bytes=size, wanted_at=_modified_at(path))


__all__ = ["MIN_AGE_S", "SandboxError", "Stale", "find_stale", "mounted_bundles", "remove", "used_images"]
