"""TRL in an environment of its own, for `bench train` and the parity tests.

From:  requirements/peers.txt (TRL's line), the product's interpreter.
To:    an interpreter that imports TRL, and torch, transformers and the rest from the product's own packages.
Holds: nothing is installed into the product's environment; no second torch is downloaded: a .pth file names the
       product's packages. A download that fails is said with its reason, never hidden.
"""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

from django.conf import settings

INSTALL_S = 300


class TrlMissing(Exception):
    """Boundary: the package registry. TRL could not be installed here; the message says why."""


def trl_directory() -> Path:
    return Path(os.environ.get("GYRE_TRL") or settings.DATA_DIR / "peers-trl")


def requirement() -> str:
    """TRL's pinned line."""
    lines = (Path(settings.BASE_DIR) / "requirements/peers.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("trl=="))


def trl_python() -> Path:
    """The interpreter; made at the first call. Raises TrlMissing."""
    directory = trl_directory()
    python = directory / "bin/python"
    if not (directory / "installed").exists():
        install(directory, python)
    return python


def install(directory: Path, python: Path) -> None:
    venv.create(directory, with_pip=True, clear=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "product.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise TrlMissing(f"`{' '.join(command)}` took more than {INSTALL_S} s") from None
    if done.returncode:
        raise TrlMissing(f"`{' '.join(command)}` failed: {done.stderr.strip()[-400:]}")
    (directory / "installed").write_text(requirement())


def environment() -> dict[str, str]:
    """Without the product's database and services, without network look-ups."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "WANDB_DISABLED": "true",
    }
