"""What a test needs from the machine, and a loud word at the end about what could not be checked.

In CI nothing that the issue asks for is skipped: a missing browser, sandbox or engine fails there.
"""

import importlib.util
import os
import shutil
import subprocess
from functools import cache

import pytest

from tests.containers import container_engine, image_with_work, shared_data, small_image, why_no_engine

__all__ = ["container_engine", "image_with_work", "shared_data", "small_image"]

OPTIONAL_IN_CI = {"gpu", "peer"}


@cache
def missing(marker: str) -> str | None:
    """Why a test with this marker cannot run here, or None."""
    if marker == "browser" and not (shutil.which("chromium") or shutil.which("google-chrome")):
        return "no Chromium: apt-get install chromium"
    if marker in ("sandbox", "harness") and not shutil.which("bwrap"):
        return "no bubblewrap: apt-get install bubblewrap"
    if marker == "engine" and importlib.util.find_spec("vllm") is None:
        return "no vLLM: pip install -r requirements/engine-cpu.txt"
    if marker == "docker":
        return why_no_engine()
    if marker == "gpu" and not (shutil.which("nvidia-smi") and answers("nvidia-smi", "-L")):
        return "no CUDA device"
    return None


def answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers():
            reason = missing(mark.name)
            if reason and not (os.environ.get("CI") and mark.name not in OPTIONAL_IN_CI):
                item.add_marker(pytest.mark.skip(reason=f"NOT CHECKED HERE ({mark.name}): {reason}"))


def pytest_terminal_summary(terminalreporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("NOT CHECKED ON THIS MACHINE", sep="!", red=True, bold=True)
        for report in skipped:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr[2]}")
