"""What a container wrote outside the directories that are bound into it: its own layer of the image's file system.

From:  docker.py, while it asks how a container is.
To:    bytes on disk.
Holds: where the engine keeps layers as directories that we may read (overlay2, as root), they are walked here, which
       costs what was written and no more; elsewhere the engine is asked, which is slower. A walk ends at the limit.
"""

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from environments.sandboxes import engine_client

WALKED_EVERY_S = 0.5
ASKED_EVERY_S = 5.0


def layer_directory(inspected: Mapping[str, Any]) -> str:
    """Where the host has it; empty where only the engine can tell. inspected: a container, as the engine says."""
    driver: Mapping[str, Any] = inspected.get("GraphDriver") or {}
    directory = str((driver.get("Data") or {}).get("UpperDir") or "")
    return directory if driver.get("Name") == "overlay2" and os.access(directory, os.R_OK | os.X_OK) else ""


def is_over(limit_bytes: int, container: str, directory: str) -> bool:
    """Raises SandboxError where the engine has to be asked and does not answer."""
    if directory and os.path.isdir(directory):
        return used_bytes(directory, limit_bytes) > limit_bytes
    return engine_bytes(container) > limit_bytes


def interval_s(directory: str) -> float:
    return WALKED_EVERY_S if directory else ASKED_EVERY_S


def used_bytes(directory: str, enough: int) -> int:
    """Bytes on disk below; stops counting beyond `enough`."""
    total, waiting = 0, [directory]
    while waiting and total <= enough:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return total


def engine_bytes(container: str) -> int:
    with engine_client.errors("measure a container"):
        found = engine_client.client().containers(all=True, size=True, filters={"id": container})
    return int(found[0].get("SizeRw") or 0) if found else 0
