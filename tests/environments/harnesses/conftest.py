"""Rollouts to run harnesses in, and the programs themselves, fetched once into the environment that runs the tests."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.test import override_settings

from environments.harnesses import HARNESSES, HarnessMissing
from environments.harnesses.bundles import require
from tests.environments.rollouts.conftest import make_rollout

__all__ = ["make_rollout"]


def bundles_directory() -> Path:
    """Kept between runs of the tests; GYRE_TEST_BUNDLES names another place."""
    return Path(os.environ.get("GYRE_TEST_BUNDLES") or Path(sys.prefix) / "harness-bundles")


@contextmanager
def room() -> Iterator[Path]:
    """A data directory of its own that has the fetched programs, and a short place for sockets."""
    bundles_directory().mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/var/tmp"))
    root.chmod(0o755)
    (root / "data").mkdir()
    (root / "data" / "bundles").symlink_to(bundles_directory().resolve())
    try:
        with override_settings(
            DATA_DIR=root / "data", RUNTIME_DIR=root / "rt", GATEWAY_SOCKET_DIR=root / "rt" / "gateway"
        ):
            yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def need(program: str) -> None:
    """Fetch it, or skip loudly; in CI it must be there."""
    recipe = HARNESSES[program].recipe
    if recipe is None:
        return
    try:
        require(recipe)
    except HarnessMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"NOT CHECKED HERE (harness): {error}")
