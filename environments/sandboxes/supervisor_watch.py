"""What the programs of a sandbox use: CPU, processes, memory, and disk by a process of its own.

From:  supervisor.py, inside a sandbox; /proc and the writable directories.
To:    figures for its limits; lines with bytes on the disk watcher's pipe.
Holds: a walk over a big tree delays nothing but the next walk; a file that is open but deleted counts.
Never: imports more than the standard library.
"""

from __future__ import annotations

import os
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from environments.sandboxes.supervisor_start import Order, restore_signals
else:
    from supervisor_start import restore_signals

TICK_S = 0.25
BEAT_S = 1.0


def measure(apart: tuple[int, ...]) -> tuple[float, int, int]:
    """CPU seconds, number of processes and private memory of all in here, except the processes in `apart`."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, num_processes, memory_bytes = children.ru_utime + children.ru_stime, 0, 0
    hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in apart:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{name}/statm", "rb") as file:
                sizes = file.read().split()
        except OSError:
            continue  # it ended meanwhile
        num_processes += 1
        cpu_s += sum(map(int, fields[11:15])) / hertz
        memory_bytes += max(0, int(sizes[1]) - int(sizes[2])) * page
    shared = os.statvfs("/dev/shm")
    return cpu_s, num_processes, memory_bytes + (shared.f_blocks - shared.f_bfree) * shared.f_frsize


def start_disk_watcher(order: Order) -> tuple[int, int]:
    """A process of its own measures the writable directories: a walk over a big tree must not delay output or stop."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return reading, pid
    restore_signals()
    os.close(reading)
    try:
        while True:
            began = time.monotonic()
            os.write(writing, b"%d\n" % used_bytes(order["writable"], writing))
            time.sleep(max(TICK_S, 5 * (time.monotonic() - began)))
    finally:
        os._exit(1)


def used_bytes(roots: list[str], writing: int) -> int:
    """Bytes on disk of the trees and of files that are open but deleted, each inode once. Says 0 now and then."""
    seen: set[int] = set()
    total, waiting = 0, list(roots)
    said_at = time.monotonic()
    while waiting:
        if time.monotonic() > said_at + BEAT_S:
            said_at = time.monotonic()
            os.write(writing, b"0\n")
        try:
            entries = os.scandir(waiting.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                except OSError:
                    continue
                if found.st_nlink == 1 or found.st_ino not in seen:
                    total += found.st_blocks * 512
                if found.st_nlink > 1:
                    seen.add(found.st_ino)
    return total + deleted_bytes()


def deleted_bytes() -> int:
    found: dict[tuple[int, int], int] = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue
        for name in names:
            try:
                status = os.stat(f"/proc/{process}/fd/{name}")
            except OSError:
                continue
            if status.st_nlink == 0 and status.st_mode & 0o170000 == 0o100000:
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())
