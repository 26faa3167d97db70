"""Archives of every kind, good and wicked, for the tests of imports."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import zstandard

KINDS = ("zip", "tar", "tar.gz", "tar.zst")


def task_files(name: str = "one") -> dict[str, bytes]:
    return {
        f"{name}/task.toml": b"",
        f"{name}/instruction.md": b"Make a file.\n",
        f"{name}/environment/work/start.txt": b"a\n",
        f"{name}/tests/test.sh": b"echo 1 > /logs/verifier/reward.txt\n",
    }


def write_archive(path: Path, files: dict[str, bytes]) -> Path:
    """By the suffix of its name."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz" if path.name.endswith(".gz") else "w") as archive:
        for name, data in files.items():
            add_member(archive, name, data)
    data = stream.getvalue()
    path.write_bytes(zstandard.compress(data) if path.name.endswith(".zst") else data)
    return path


def add_member(
    archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname, info.mode = len(data), kind, to, 0o755
    archive.addfile(info, io.BytesIO(data))


def write_tar(path: Path, *members: tuple[str, bytes, str]) -> Path:
    """members: (name, tarfile's type, target of a link)."""
    with tarfile.open(path, "w") as archive:
        for name, kind, to in members:
            add_member(archive, name, b"x" if kind == tarfile.REGTYPE else b"", kind, to)
    return path


def write_zip_link(path: Path, name: str, to: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, to)
    return path
