"""Copy, read and delete trees that an agent wrote, without being led out of them.

From:  process.py (work tree in, snapshot out), environments.verification (files of /logs).
To:    plain directories and files of the host.
Holds: no link is ever followed; a FIFO, socket or device is never opened; set-id bits are dropped.
Never: trusts a name, a size or a type that it did not look up through an open directory.
"""

import os
import shutil
import stat
import subprocess
from pathlib import Path

MAX_DEPTH = 200
DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def copy_tree(
    source: Path,
    destination: Path,
    *,
    owner: int | None = None,
    keep_outer_links: bool = False,
    into: bool = False,
) -> list[str]:
    """Copy a directory to a path that does not exist yet, or `into` an empty directory.

    owner: user and group id of the copy (needs root). keep_outer_links: also links that leave the tree, as links.
    returns what was left out, as "path: reason".
    """
    source_fd = os.open(source, DIRECTORY_FLAGS)
    try:
        destination.mkdir(parents=False, exist_ok=into)
        left_out: list[str] = []
        copier = _Copier(owner=owner, keep_outer_links=keep_outer_links, left_out=left_out)
        target_fd = os.open(destination, DIRECTORY_FLAGS)
        try:
            copier.copy_directory(source_fd, target_fd, ())
        finally:
            os.close(target_fd)
        return left_out
    finally:
        os.close(source_fd)


class _Copier:
    def __init__(self, *, owner: int | None, keep_outer_links: bool, left_out: list[str]) -> None:
        self.owner = owner
        self.keep_outer_links = keep_outer_links
        self.left_out = left_out

    def copy_directory(self, source_fd: int, target_fd: int, parts: tuple[str, ...]) -> None:
        for name in sorted(os.listdir(source_fd)):
            try:
                self._copy_entry(source_fd, target_fd, name, (*parts, name))
            except FileNotFoundError:
                continue  # a living tree changes while it is copied
            except PermissionError:
                self._leave_out((*parts, name), "not readable")
        self._finish(target_fd, os.fstat(source_fd))

    def _copy_entry(self, source_fd: int, target_fd: int, name: str, path: tuple[str, ...]) -> None:
        mode = os.stat(name, dir_fd=source_fd, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            self._copy_subdirectory(source_fd, target_fd, name, path)
        elif stat.S_ISREG(mode):
            self._copy_file(source_fd, target_fd, name, path)
        elif stat.S_ISLNK(mode):
            self._copy_link(source_fd, target_fd, name, path)
        else:
            self._leave_out(path, "not a plain file")

    def _copy_subdirectory(self, source_fd: int, target_fd: int, name: str, path: tuple[str, ...]) -> None:
        if len(path) > MAX_DEPTH:
            self._leave_out(path, "too deep")
            return
        inner_source = os.open(name, DIRECTORY_FLAGS, dir_fd=source_fd)
        try:
            os.mkdir(name, 0o700, dir_fd=target_fd)
            inner_target = os.open(name, DIRECTORY_FLAGS, dir_fd=target_fd)
            try:
                self.copy_directory(inner_source, inner_target, path)
            finally:
                os.close(inner_target)
        finally:
            os.close(inner_source)

    def _copy_file(self, source_fd: int, target_fd: int, name: str, path: tuple[str, ...]) -> None:
        inner_source = os.open(name, FILE_FLAGS, dir_fd=source_fd)
        try:
            found = os.fstat(inner_source)
            if not stat.S_ISREG(found.st_mode):  # exchanged since it was looked up
                self._leave_out(path, "not a plain file")
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            inner_target = os.open(name, flags, 0o600, dir_fd=target_fd)
            try:
                _copy_bytes(inner_source, inner_target, found.st_size)
                self._finish(inner_target, found)
            finally:
                os.close(inner_target)
        finally:
            os.close(inner_source)

    def _copy_link(self, source_fd: int, target_fd: int, name: str, path: tuple[str, ...]) -> None:
        text = os.readlink(name, dir_fd=source_fd)
        if not self.keep_outer_links and leaves_tree(text, path):
            self._leave_out(path, "a link out of the tree")
            return
        os.symlink(text, name, dir_fd=target_fd)
        if self.owner is not None:
            os.chown(name, self.owner, self.owner, dir_fd=target_fd, follow_symlinks=False)

    def _finish(self, fd: int, like: os.stat_result) -> None:
        if self.owner is not None:
            os.fchown(fd, self.owner, self.owner)
        os.fchmod(fd, like.st_mode & 0o777)
        os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))

    def _leave_out(self, path: tuple[str, ...], reason: str) -> None:
        self.left_out.append(f"{'/'.join(path)}: {reason}")


def leaves_tree(link: str, path: tuple[str, ...]) -> bool:
    """Whether a link at `path` (names from the root) points above the root, by its text alone."""
    if link.startswith("/"):
        return True
    depth = len(path) - 1
    for part in link.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return True
    return False


def _copy_bytes(source_fd: int, target_fd: int, size: int) -> None:
    """Copy up to `size` bytes, holes as holes: a sparse file must not fill the host's disk."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(source_fd, offset, os.SEEK_DATA)
        except OSError:
            break  # only a hole is left
        end = min(os.lseek(source_fd, start, os.SEEK_HOLE), size)
        os.lseek(source_fd, start, os.SEEK_SET)
        os.lseek(target_fd, start, os.SEEK_SET)
        while start < end:
            data = os.read(source_fd, min(1 << 20, end - start))
            if not data:
                break
            os.write(target_fd, data)
            start += len(data)
        if start < end:
            break
        offset = end
    os.ftruncate(target_fd, size)


def read_regular(path: Path, *, offset: int = 0, limit: int = 1 << 20) -> bytes:
    """Bytes of a plain file; the last component may be no link, FIFO or device (OSError).

    For a file that an agent could write: its parents must be directories that it could not exchange.
    """
    fd = os.open(path, FILE_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"sandbox: {path.name} is not a plain file")
        return os.pread(fd, limit, offset)
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """Delete a directory of any depth, also where the agent took away its own permissions."""
    for _ in range(3):
        subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], capture_output=True, check=False)
        if not os.path.lexists(path):
            return
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], capture_output=True, check=False)
    shutil.rmtree(path)
