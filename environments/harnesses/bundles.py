"""Agent programs as directories that any image can run: built once, mounted read-only, independent of the image.

From:  Recipe (a harness adapter names it); Prepared.files for the small files of one start.
To:    DATA_DIR/bundles/<name>-<version>-<libc>-<digest>/, mounted at /gyre/bundle beside the runtimes that it needs
       (runtimes.py); DATA_DIR/harnesses/<digest>/, mounted at /gyre/harness.
Holds: a directory is complete or absent; several that want one build it once; nothing is downloaded after it is there.
Never: runs a package's own install scripts; writes into an image.

    /gyre/bundle/site-packages    packages of `pip`, compiled; /gyre/bundle/bin has their commands
    /gyre/bundle/node_modules     packages of `npm`; /gyre/bundle/node_modules/.bin has their commands
    /gyre/bundle/bundle.json      recipe, versions of all that was installed, digest of the contents
"""

import compileall
import fcntl
import hashlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from django.conf import settings

from environments.harnesses import runtimes
from environments.harnesses.base import BundleMount, HarnessMissing

BUNDLE_DIRECTORY = "/gyre/bundle"
SITE_PACKAGES = f"{BUNDLE_DIRECTORY}/site-packages"
FORMAT = 1
"""Part of every digest: raise it when the layout changes."""
INSTALL_TIMEOUT_S = 900.0
SAID_CHARS = 2000

Say = Callable[[str], None]


class Libc(StrEnum):
    """The C library of the images that a bundle is for. Runtimes bring their own; native npm programs differ."""

    GLIBC = "glibc"
    MUSL = "musl"


class BundleError(HarnessMissing):
    """Boundary: harness. A bundle cannot be built here; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a bundle is made of. pip: `name==version`; npm: `name@version`; node: version of the Node runtime.

    omit: names of npm packages' directories that are deleted after the installation (optional parts never used).
    """

    name: str
    version: str
    libc: Libc = Libc.GLIBC
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    node: str = runtimes.NODE_VERSION
    omit: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        loose = [text for text in self.pip if "==" not in text]
        loose += [text for text in self.npm if not re.search(r".@\d+\.\d+\.\d+", text)]
        if loose or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", self.name):
            raise ValueError(f"recipe {self.name!r}: a plain name and exact versions are needed, not {loose}")

    def digest(self) -> str:
        python = runtimes.python_key() if self.pip else ""
        text = json.dumps([FORMAT, python, asdict(self)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One that is there."""

    name: str
    version: str
    libc: Libc
    path: Path
    mounts: tuple[BundleMount, ...]
    """The bundle itself at /gyre/bundle, and the runtimes of its packages at /gyre/python and /gyre/node."""


def find(recipe: Recipe) -> Bundle | None:
    """The bundle if it was built, with its runtimes."""
    path = _path_of(recipe)
    mounts = [BundleMount(source=path, target=BUNDLE_DIRECTORY)]
    if recipe.pip:
        mounts.append(BundleMount(source=runtimes.python_path(), target=runtimes.PYTHON_DIRECTORY))
    if recipe.npm:
        mounts.append(BundleMount(source=runtimes.node_path(recipe.node), target=runtimes.NODE_DIRECTORY))
    if not all(mount.source.is_dir() for mount in mounts):
        return None
    for mount in mounts:
        runtimes.stamp(mount.source)
    return Bundle(name=recipe.name, version=recipe.version, libc=recipe.libc, path=path, mounts=tuple(mounts))


def require(recipe: Recipe, say: Say = lambda line: None) -> Bundle:
    """The bundle, built now where it is missing. Raises BundleError."""
    bundle = find(recipe)
    if bundle is None:
        build(recipe, say)
        bundle = find(recipe)
    assert bundle is not None
    return bundle


def build(recipe: Recipe, say: Say = lambda line: None) -> Path:
    """Install everything aside, then publish it whole. Waits where another builds the same. Raises BundleError."""
    if recipe.pip:
        runtimes.build_python(say)
    if recipe.npm:
        runtimes.build_node(recipe.node, say)
    path = _path_of(recipe)
    with publishing(path) as aside:
        if aside is not None:
            say(f"{recipe.name} {recipe.version}: installing for {recipe.libc}")
            if recipe.pip:
                _install_pip(recipe, aside)
            if recipe.npm:
                _install_npm(recipe, aside)
            _write_manifest(recipe, aside)
            say(f"{recipe.name} {recipe.version}: ready in {path.name}")
    return path


@contextmanager
def publishing(path: Path) -> Iterator[Path | None]:
    """An empty directory that becomes `path` when the block ends well; None where it is there already.

    One builder at a time, over all processes of this host. What a killed builder left is removed by the next.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():
            yield None
            return
        for leftover in path.parent.glob(f".{path.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            yield aside
            aside.chmod(0o755)
            aside.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _path_of(recipe: Recipe) -> Path:
    return runtimes.root_directory() / f"{recipe.name}-{recipe.version}-{recipe.libc}-{recipe.digest()}"


# ---- packages


def _install_pip(recipe: Recipe, aside: Path) -> None:
    """With the pip of the environment that runs Gyre: the runtime is a copy of its Python. Wheels only."""
    target = aside / "site-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    run([*pip, "--only-binary", ":all:", "--target", str(target), *recipe.pip], "pip", recipe.name)
    if (target / "bin").is_dir():
        (target / "bin").rename(aside / "bin")
        for script in (aside / "bin").iterdir():
            _point_script_at_runtime(script)
    compileall.compile_dir(target, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def _point_script_at_runtime(script: Path) -> None:
    """A console script starts the mounted Python with the bundle's packages, and no other."""
    first, _, rest = script.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        head = f"#!{runtimes.PYTHON} -I\nimport sys\nsys.path.insert(0, {SITE_PACKAGES!r})\n"
        script.write_bytes(head.encode() + rest)
        script.chmod(0o755)


def _install_npm(recipe: Recipe, aside: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise BundleError(f"harness {recipe.name}: npm is not installed here; it is needed once, to build the bundle.")
    (aside / "package.json").write_text(json.dumps({"private": True}))
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--save-exact", "--loglevel=error"]
    flags += ["--os=linux", f"--cpu={runtimes.node_cpu()}", f"--libc={recipe.libc}", f"--prefix={aside}"]
    run([npm, "install", *flags, *recipe.npm], "npm", recipe.name)
    for name in recipe.omit:
        shutil.rmtree(aside / "node_modules" / name, ignore_errors=True)


def run(command: Sequence[str], tool: str, name: str) -> str:
    """Its output. Raises BundleError with what it said, where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BundleError(f"harness {name}: {tool} did not end: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-SAID_CHARS:]
        raise BundleError(f"harness {name}: {tool} failed; can the package registry be reached? It said: {said}")
    return done.stdout


# ---- the record


def _write_manifest(recipe: Recipe, aside: Path) -> None:
    manifest = {
        "recipe": asdict(recipe),
        "installed": {**_installed_pip(aside), **_installed_npm(aside)},
        "contents": digest_tree(aside),
    }
    (aside / "bundle.json").write_text(json.dumps(manifest, indent=1, default=str) + "\n")


def _installed_pip(aside: Path) -> dict[str, str]:
    found = (path.name.removesuffix(".dist-info") for path in (aside / "site-packages").glob("*.dist-info"))
    return {name: version for name, _, version in (text.rpartition("-") for text in sorted(found))}


def _installed_npm(aside: Path) -> dict[str, str]:
    lock = aside / "package-lock.json"
    if not lock.is_file():
        return {}
    packages: dict[str, Any] = json.loads(lock.read_text())["packages"]
    here = {path: entry for path, entry in packages.items() if path and (aside / path).is_dir()}
    return {path.removeprefix("node_modules/"): str(entry.get("version", "")) for path, entry in sorted(here.items())}


def digest_tree(root: Path) -> str:
    """sha256 over path, mode and contents of everything below, in order of path."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            digest.update(f"{name}\0link\0{os.readlink(path)}\0".encode())
        elif path.is_file():
            digest.update(f"{name}\0{path.stat().st_mode & 0o777:o}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


# ---- files of one start


def write_bundle(files: Mapping[str, str]) -> Path:
    """The directory that holds exactly these files. Python modules lie there compiled."""
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
