"""A base image made from this machine's own Debian packages: for machines that reach no image registry.

From:  the package sources that apt uses here; debootstrap.
To:    gyre-base:<release>-<digest of the recipe> in the container engine.
Holds: a small Debian with Python, git, curl and certificates; no source is written down here.
Never: runs without being asked: by name (`gyre-base`), or by the operator's setting (GYRE_IMAGE_STAND_INS).
Cost:  a minute or two, and 250 MB (docs/log.md).
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from environments.images.errors import ImageUnavailable
from environments.sandboxes.engine_client import client, errors

NAME = "gyre-base"
PACKAGES = ("ca-certificates", "curl", "git", "python3-minimal")
FORMAT = 1
EMPTIED = ("var/cache/apt/archives", "var/lib/apt/lists", "var/log")

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """Where apt gets this release's packages. keyring: empty where debootstrap's own is meant."""

    uri: str
    release: str
    keyring: str


@cache
def recipe_digest() -> str:
    text = json.dumps([FORMAT, release_name(), platform.machine(), PACKAGES])
    return hashlib.sha256(text.encode()).hexdigest()


def base_reference() -> str:
    return f"{NAME}:{release_name() or 'none'}-{recipe_digest()[:12]}"


@cache
def release_name() -> str:
    """Of this machine; empty where it is no Debian or Ubuntu."""
    facts = platform.freedesktop_os_release()
    return facts.get("VERSION_CODENAME", "") if {"debian", "ubuntu"} & _family(facts) else ""


def _family(facts: dict[str, str]) -> set[str]:
    return {facts.get("ID", ""), *facts.get("ID_LIKE", "").split()}


def find_package_source() -> PackageSource:
    """As apt itself reads its lists. Raises ImageUnavailable."""
    wanted = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)"
    try:
        said = _capture(["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"])
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImageUnavailable(f"{NAME} cannot be made: apt names no package source here ({error}).") from error
    for line in said.splitlines():
        uri, release, component, keyring = line.split("|")
        if release == release_name() and component == "main":
            return PackageSource(uri=uri, release=release, keyring=keyring if keyring.startswith("/") else "")
    raise ImageUnavailable(f"{NAME} cannot be made: apt has no source of {release_name() or 'a Debian release'} here.")


def make_base(reference: str, say: Say) -> str:
    """Install the packages aside and import them; returns the engine's id. Raises ImageUnavailable."""
    _check_tools()
    source = find_package_source()
    say(f"{reference}: Debian {source.release} with {', '.join(PACKAGES)}, from this machine's package source")
    work = Path(tempfile.mkdtemp(prefix="gyre-base-"))
    try:
        _bootstrap(source, work / "root", say)
        _clean(work / "root")
        say("importing it into the container engine")
        return _import(reference, work / "root")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_tools() -> None:
    if shutil.which("debootstrap") is None:
        raise ImageUnavailable(f"{NAME} cannot be made: debootstrap is not installed (apt-get install debootstrap).")
    if os.geteuid() != 0:
        raise ImageUnavailable(f"{NAME} cannot be made: debootstrap needs root; run `manage.py images base` as root.")


def _bootstrap(source: PackageSource, root: Path, say: Say) -> None:
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    words += [f"--keyring={source.keyring}"] if source.keyring else []
    follow([*words, source.release, str(root), source.uri], say)


def follow(command: Sequence[str], say: Say) -> None:
    """Run it, passing on every line. Raises ImageUnavailable with its last words."""
    said: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said = [*said[-20:], line.rstrip()]
                say(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise ImageUnavailable(f"{command[0]} failed with exit code {process.returncode}: {' / '.join(said[-5:])}")


def _clean(root: Path) -> None:
    for name in EMPTIED:
        for path in (root / name).iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _import(reference: str, root: Path) -> str:
    repository, tag = reference.split(":")
    tar = ["tar", "--numeric-owner", "--exclude=./dev/*", "--exclude=./proc/*", "-C", str(root), "-c", "."]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing, errors("import the base image"):
        client().import_image_from_stream(packing.stdout, repository=repository, tag=tag, changes=['CMD ["/bin/sh"]'])
        return str(client().inspect_image(reference)["Id"])


def _capture(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
