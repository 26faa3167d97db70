"""The files of a prepared harness as a directory of the host, shared by all rollouts that need the same ones.

From:  Prepared.files.
To:    DATA_DIR/harnesses/<digest>/, mounted read-only at /gyre/harness.
Holds: a directory is complete or absent; its name is the digest of its contents. Python modules lie there compiled.
"""

import compileall
import hashlib
import json
import os
import py_compile
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from django.conf import settings


def write_bundle(files: Mapping[str, str]) -> Path:
    """The directory that holds exactly these files."""
    root = Path(settings.DATA_DIR) / "harnesses"
    digest = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()[:32]
    destination = root / digest
    if destination.is_dir():
        return destination
    root.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{digest}-", dir=root))
    try:
        for path, text in files.items():
            target = aside / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if text.startswith("#!") else 0o644)
        compileall.compile_dir(aside, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        aside.chmod(0o755)
        _rename_unless_there(aside, destination)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return destination


def _rename_unless_there(source: Path, destination: Path) -> None:
    try:
        os.rename(source, destination)
    except OSError:
        if not destination.is_dir():
            raise
