"""An image with a shell and the usual tools, made in a second from programs of this machine; no registry is asked.

From:  `ldd` and the programs themselves.
To:    an image of the container engine; benches and tests start sandboxes from it.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import docker

IMAGE = "gyre-small"
PROGRAMS = (
    "basename bash cat chmod chown cp cut date dd df dirname du echo env expr false find grep head hostname id kill "
    "ln ls mkdir mkfifo mknod mv nice nohup od printf ps pwd readlink rm rmdir sed seq setsid sh sleep sort stat "
    "stty sync tail tee test timeout touch tr true truncate uname unshare wc whoami xargs "
)
"""Those that this machine has."""


def import_image(tag: str, files: dict[str, str] | None = None, changes: list[str] | None = None) -> str:
    api = docker.from_env().api
    api.import_image_from_data(pack(files or {}), repository=IMAGE, tag=tag, changes=changes)
    return str(api.inspect_image(f"{IMAGE}:{tag}")["Id"])


def pack(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for link in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            archive.addfile(entry)
        for path in ("etc", "tmp", "var", "var/tmp", "root", "proc", "dev", "sys", *inner_directories(files)):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path.endswith("tmp") else 0o755
            archive.addfile(entry)
        for source, target in programs_and_libraries():
            archive.add(source, target, recursive=False)
        for path, text in {
            "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
            "etc/group": "root:x:0:\n",
            **files,
        }.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def inner_directories(files: dict[str, str]) -> list[str]:
    parents = {parent.as_posix() for path in files for parent in Path(path).parents}
    return sorted(parents - {".", "etc"})


def programs_and_libraries() -> list[tuple[str, str]]:
    """(file of this machine, place in the image)."""
    found = {name: shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin") for name in PROGRAMS.split()}
    paths = {name: path for name, path in found.items() if path}
    said = subprocess.run(["ldd", *map(os.path.realpath, paths.values())], capture_output=True, text=True, check=False)
    libraries = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said.stdout, re.MULTILINE))
    programs = [(os.path.realpath(path), f"usr/bin/{name}") for name, path in paths.items()]
    placed = {path if path.startswith("/usr/") else f"/usr{path}" for path in libraries}
    return programs + [(os.path.realpath(path), path[1:]) for path in sorted(placed)]
