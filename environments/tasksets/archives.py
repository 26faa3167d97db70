"""Look into an archive that a stranger made, and unpack it only if every entry of it is harmless.

From:  environments.tasksets.importing, with an uploaded or local file.
To:    plain files below a directory that is not public yet.
Holds: `check_archive` reads the archive to its end and writes nothing; all that is wrong is told at once. What is
       counted are the bytes that really come out, not what a header claims, both when checking and when unpacking.
Never: makes a link, a device or a file outside the directory; keeps set-id bits, owners or times.
"""

import gzip
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import zstandard

from environments.tasksets.harbor import Problem

MIB = 1 << 20
PIECE = 1 << 16
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1000
MAX_DEPTH = 24
MAX_PROBLEMS = 200
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What an archive may hold. ratio: unpacked to packed, looked at only above `ratio_from_bytes`."""

    entries: int = 200_000
    total_bytes: int = 4096 * MIB
    file_bytes: int = 512 * MIB
    ratio: int = 200
    ratio_from_bytes: int = 16 * MIB


class InvalidArchive(ValueError):
    """Nothing of it was unpacked; `problems` says why, all at once."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """path: as written in the archive. kind: file, directory, link or device."""

    path: str
    kind: str
    executable: bool = False


class _Stop(Exception):
    """A bound was passed: looking further would be what a bomb wants."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


Content = Callable[[], Iterator[bytes]]


class _Reader(Protocol):
    def __call__(self, file: IO[bytes], bounds: Bounds) -> Iterator[tuple[Entry, Content]]: ...


def check_archive(path: Path, bounds: Bounds = Bounds()) -> None:
    """Read it whole. Raises InvalidArchive with everything that is wrong with its names, kinds and sizes."""
    problems: list[Problem] = []
    names = Names(problems)
    meter = _Meter(path, bounds)
    with _reading(path, bounds, problems) as entries:
        for entry, content in entries:
            meter.count_entry()
            problems += check_path(entry)
            names.add(entry)
            if entry.kind == "file":
                for piece in content():
                    meter.count(piece, entry.path)
                meter.end_file()
            if len(problems) >= MAX_PROBLEMS:
                break
    if not names.seen and not problems:
        problems.append(Problem(file=path.name, message="holds no file.", rule="empty-archive"))
    if problems:
        raise InvalidArchive(problems[:MAX_PROBLEMS])


def unpack_archive(path: Path, directory: Path, bounds: Bounds = Bounds()) -> None:
    """Write the files of a checked archive below an empty directory. Raises InvalidArchive if it changed since."""
    problems: list[Problem] = []
    meter = _Meter(path, bounds)
    with _reading(path, bounds, problems) as entries:
        for entry, content in entries:
            meter.count_entry()
            if problem := next(iter(check_path(entry)), None):
                raise InvalidArchive([problem])
            target = directory.joinpath(*split_path(entry.path))
            if entry.kind == "directory":
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                for piece in content():
                    meter.count(piece, entry.path)
                    file.write(piece)
            meter.end_file()
            target.chmod(0o755 if entry.executable else 0o644)
    if problems:
        raise InvalidArchive(problems)


# Names.


def split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def check_path(entry: Entry) -> Iterator[Problem]:
    """What is wrong with one entry by itself."""
    path, shown = entry.path, show(entry.path)
    parts = split_path(path)

    def problem(message: str, rule: str, remedy: str = "") -> Problem:
        return Problem(file=shown, message=message, remedy=remedy, rule=rule)

    if not parts and entry.kind != "directory":
        yield problem("has no name.", "bad-name")
    if path.startswith("/") or (len(path) > 1 and path[1] == ":" and path[0].isalpha()):
        yield problem("is an absolute path.", "absolute-path", "Pack with relative names.")
    if ".." in parts:
        yield problem("leaves the archive (`..`).", "path-traversal")
    if "\\" in path:
        yield problem("has a backslash in its name.", "bad-name", "Use / between directories.")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
        yield problem("has control characters in its name.", "bad-name")
    too_long = any(len(part.encode(errors="replace")) > MAX_NAME_BYTES for part in parts)
    if too_long or len(path.encode(errors="replace")) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH:
        yield problem("has a name that is too long or too deep.", "name-too-long")
    if entry.kind == "link":
        yield problem("is a link.", "link", "Pack the file itself.")
    if entry.kind == "device":
        yield problem("is a device, FIFO or socket.", "device")


def show(path: str) -> str:
    """A name that can be printed, of bounded length."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in path)
    return text if len(text) <= 160 else f"{text[:157]}..."


class Names:
    """Two entries at one place, also where a file system does not tell capital letters or accents apart."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.seen: dict[str, tuple[str, str]] = {}
        """(path, kind) by folded path; directories above an entry count too."""
        self.told: set[str] = set()

    def add(self, entry: Entry) -> None:
        parts = split_path(entry.path)
        for depth in range(1, len(parts)):
            self._see("/".join(parts[:depth]), "directory")
        if parts:
            self._see("/".join(parts), entry.kind)

    def _see(self, path: str, kind: str) -> None:
        known_path, known_kind = self.seen.setdefault(fold(path), (path, ""))
        if not known_kind:
            self.seen[fold(path)] = (path, kind)
        elif known_path != path:
            self._tell(path, f"differs from {show(known_path)} only by case or accents.")
        elif kind != known_kind:
            self._tell(path, "is both a file and a directory.")
        elif kind != "directory":
            self._tell(path, "occurs twice.")

    def _tell(self, path: str, message: str) -> None:
        if path not in self.told:
            self.told.add(path)
            self.problems.append(Problem(file=show(path), message=message, rule="duplicate-name"))


def fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


# Sizes.


class _Meter:
    """Counts what really comes out. Raises _Stop at the first bound that is passed."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self.bounds = bounds
        self.packed_bytes = max(1, path.stat().st_size)
        self.num_entries = self.total_bytes = self.file_bytes = 0

    def count_entry(self) -> None:
        self.num_entries += 1
        if self.num_entries > self.bounds.entries:
            raise _Stop(_too_much("archive", f"has more than {self.bounds.entries} entries.", "too-many-entries"))

    def count(self, piece: bytes, path: str) -> None:
        self.total_bytes += len(piece)
        self.file_bytes += len(piece)
        if self.file_bytes > self.bounds.file_bytes:
            raise _Stop(_too_much(show(path), f"is larger than {self.bounds.file_bytes // MIB} MiB.", "too-large"))
        if self.total_bytes > self.bounds.total_bytes:
            raise _Stop(
                _too_much("archive", f"unpacks to more than {self.bounds.total_bytes // MIB} MiB.", "too-large")
            )
        if self.total_bytes > max(self.bounds.ratio_from_bytes, self.bounds.ratio * self.packed_bytes):
            message = f"unpacks to more than {self.bounds.ratio} times its size: a bomb."
            raise _Stop(_too_much("archive", message, "bomb"))

    def end_file(self) -> None:
        self.file_bytes = 0


def _too_much(file: str, message: str, rule: str) -> Problem:
    return Problem(file=file, message=message, rule=rule)


# Formats.


@contextmanager
def _reading(path: Path, bounds: Bounds, problems: list[Problem]) -> Iterator[Iterator[tuple[Entry, Content]]]:
    """Its entries, whatever its format; what goes wrong while they are read becomes a problem."""
    try:
        with path.open("rb") as file:
            yield _iter_entries(file, path, bounds)
    except _Stop as stop:
        problems.append(stop.problem)
    except InvalidArchive:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the archive
        message = f"is damaged: {show(str(error)[:120]) or type(error).__name__}."
        problems.append(Problem(file=path.name, message=message, rule="damaged"))


DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zstandard.ZstdError,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    ArithmeticError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
"""What the readers raise where the bytes are not what their headers say."""


def _iter_entries(file: IO[bytes], path: Path, bounds: Bounds) -> Iterator[tuple[Entry, Content]]:
    yield from _choose_reader(file, path)(file, bounds)


def _choose_reader(file: IO[bytes], path: Path) -> _Reader:
    head = file.read(512)
    file.seek(0)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _read_zip
    if head.startswith(b"\x1f\x8b"):
        return _read_tar_gz
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _read_tar_zst
    if head[257:262] == b"ustar" or (len(head) == 512 and path.name.endswith(".tar")):
        return _read_tar
    raise _Stop(
        Problem(
            file=path.name,
            message="is no archive that can be read here.",
            remedy=f"Use one of {', '.join(SUFFIXES)}.",
            rule="unknown-format",
        )
    )


def _read_zip(file: IO[bytes], bounds: Bounds) -> Iterator[tuple[Entry, Content]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.flag_bits & 0x1:
                message = "is encrypted."
                raise _Stop(Problem(file=show(info.orig_filename), message=message, rule="encrypted"))
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"compression {info.compress_type} is not supported; use deflate")
            mode = info.external_attr >> 16
            entry = Entry(path=info.orig_filename, kind=_zip_kind(info, mode), executable=bool(mode & 0o100))

            def content(info: zipfile.ZipInfo = info) -> Iterator[bytes]:
                with archive.open(info) as stream:
                    while piece := stream.read(PIECE):
                        yield piece

            yield entry, content


def _zip_kind(info: zipfile.ZipInfo, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "link"
    if info.is_dir() or stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_IFMT(mode) in (0, stat.S_IFREG) else "device"


class _Info(tarfile.TarInfo):
    """Names and headers of bounded length only: tarfile reads them into memory, however long they say they are."""

    def _refuse_long(self) -> None:
        if self.size > MIB:
            raise tarfile.ReadError("a header is longer than 1 MiB")

    def _proc_pax(self, archive: Any) -> Any:
        self._refuse_long()
        return super()._proc_pax(archive)  # type: ignore[misc]

    def _proc_gnulong(self, archive: Any) -> Any:
        self._refuse_long()
        return super()._proc_gnulong(archive)  # type: ignore[misc]


class _Counted:
    """A decompressed stream that ends the reading where it grows beyond all bounds, headers included."""

    def __init__(self, stream: IO[bytes], packed_bytes: int, bounds: Bounds) -> None:
        self.stream = stream
        self.left = min(
            2 * bounds.total_bytes, max(2 * bounds.ratio_from_bytes, 2 * bounds.ratio * max(1, packed_bytes))
        )

    def read(self, size: int = -1) -> bytes:
        piece = self.stream.read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise _Stop(_too_much("archive", "unpacks to far more than its size: a bomb.", "bomb"))
        return piece


def _read_tar(file: IO[bytes], bounds: Bounds) -> Iterator[tuple[Entry, Content]]:
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_Info) as archive:
        for member in archive:
            entry = Entry(path=member.name, kind=_tar_kind(member), executable=bool(member.mode & 0o100))

            def content(member: tarfile.TarInfo = member) -> Iterator[bytes]:
                stream = archive.extractfile(member)
                while stream and (piece := stream.read(PIECE)):
                    yield piece

            yield entry, content


def _tar_kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "link"
    if member.isdir():
        return "directory"
    return "file" if member.isreg() and not member.issparse() else "device"


def _read_tar_gz(file: IO[bytes], bounds: Bounds) -> Iterator[tuple[Entry, Content]]:
    packed = _size(file)
    with gzip.GzipFile(fileobj=file) as stream:
        yield from _read_tar(_Counted(stream, packed, bounds), bounds)  # type: ignore[arg-type]


def _read_tar_zst(file: IO[bytes], bounds: Bounds) -> Iterator[tuple[Entry, Content]]:
    packed = _size(file)
    with zstandard.ZstdDecompressor(max_window_size=128 * MIB).stream_reader(file, read_across_frames=True) as stream:
        yield from _read_tar(_Counted(stream, packed, bounds), bounds)  # type: ignore[arg-type]


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size
