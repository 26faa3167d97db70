"""The packages that tasks are made from: which, under which licence, and how to get exactly these bytes.

From:  sources.toml beside this file; `pip download`, which goes to whatever index the user's pip is set up for.
To:    the files of a package that a task needs, in memory.
Holds: an archive is used only if its sha256 is the recorded one; only plain files are read from it.
Never: unpacks an archive to disk, keeps anything of a package in the repository.
"""

import hashlib
import io
import posixpath
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("sources.toml")
KEPT_AT_THE_TOP = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "README", "pyproject.toml", "setup.py", "setup.cfg")
MAX_FILE_BYTES = 8 << 20
DOWNLOAD_TIMEOUT_S = 600


class SourceError(RuntimeError):
    """Boundary: package index. A package could not be had, or is not the recorded one; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    version: str
    sdist: str
    sha256: str
    licence: str
    code: tuple[str, ...]
    """Files and directories of the package itself."""
    tests: tuple[str, ...]
    """Files and directories of the tests; inside `code` in some packages."""
    path: tuple[str, ...] = (".",)
    """Directories on the path while the tests run."""
    mutate: tuple[str, ...] = ()
    """What of `code` may be mutated, where the tests cover only a part; empty: all."""


def load_sources(only: Sequence[str] = ()) -> list[Source]:
    """All recorded packages, or those named. Raises SourceError for a name that is not there."""
    found = [_build_source(entry) for entry in tomllib.loads(SOURCES.read_text())["source"]]
    known = {source.name for source in found}
    if unknown := sorted(set(only) - known):
        raise SourceError(f"No package {', '.join(unknown)} in sources.toml; there are: {', '.join(sorted(known))}.")
    return [source for source in found if not only or source.name in only]


def _build_source(entry: dict[str, Any]) -> Source:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Source(**fields)


def fetch(source: Source, cache: Path) -> bytes:
    """The package's archive, from the cache or by pip. Raises SourceError."""
    path = cache / source.sdist
    if not path.is_file():
        _download(source, cache)
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != source.sha256:
        path.unlink()
        raise SourceError(
            f"{source.sdist} has the sha256 {digest}, and {source.sha256} is recorded; it was deleted. Try again, and "
            "if it stays so, your package index does not serve the original."
        )
    return data


def _download(source: Source, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        wanted = Path(directory) / "wanted.txt"
        wanted.write_text(f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n")
        words = ["download", "--quiet", "--no-deps", "--no-binary", source.name, "--require-hashes"]
        command = [sys.executable, "-m", "pip", *words, "--dest", directory, "--requirement", str(wanted)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"pip did not get {source.name} within {DOWNLOAD_TIMEOUT_S} s.") from error
        got = Path(directory) / source.sdist
        if ended.returncode or not got.is_file():
            last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise SourceError(
                f"pip could not get {source.name}=={source.version}: {last} Check that pip reaches a package index."
            )
        got.rename(cache / source.sdist)


def read_package(source: Source, archive: bytes) -> dict[str, bytes]:
    """Content by path of what a task shows: code, tests, licence and readme."""
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            path = posixpath.normpath(member.name).partition("/")[2]
            if not member.isreg() or member.size > MAX_FILE_BYTES or not path or ".." in path.split("/"):
                continue
            if _is_wanted(path, source):
                stream = tar.extractfile(member)
                files[path] = stream.read() if stream else b""
    for root in (*source.code, *source.tests):
        if not any(is_below(path, [root]) for path in files):
            raise SourceError(f"{source.sdist} has no {root}; correct sources.toml.")
    return dict(sorted(files.items()))


def _is_wanted(path: str, source: Source) -> bool:
    if path.endswith((".pyc", ".so", ".c", ".h")):
        return False
    return is_below(path, [*source.code, *source.tests]) or ("/" not in path and path.startswith(KEPT_AT_THE_TOP))


def is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)
