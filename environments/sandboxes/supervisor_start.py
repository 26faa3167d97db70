"""Start the harness: its own session, no input, another user, limits; and what a process of ours does with signals.

From:  supervisor.py, inside a sandbox.
To:    the harness's process, with its output in a pipe.
Holds: nothing runs between fork and exec but what stands here; a harness that cannot be started says why in its output.
Never: imports more than the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal

TYPE_CHECKING = False  # `import typing` would cost 5 ms of every start
if TYPE_CHECKING:
    from typing import NoReturn, NotRequired, TypedDict

    class Order(TypedDict):
        """What directory.build_order says. uid, relay_uid: the host users to become; None: stay who we are.

        In a container further: the directory to work in, words that start Python, a second way out, and False where the
        container counts processes (here they are counted per user, which it shares with our own).
        """

        command: list[str]
        work_directory: NotRequired[str]
        python: NotRequired[list[str]]
        counts_processes: NotRequired[bool]
        egress: NotRequired[bool]
        environment: dict[str, str]
        uid: int | None
        relay: bool
        relay_uid: int | None
        timeout_s: float
        grace_s: float
        output_bytes: int
        writable: list[str]
        cpu_s: float | None
        memory_bytes: int
        num_processes: int
        file_bytes: int
        disk_bytes: int


def install_signals() -> int:
    """Signals arrive as bytes on a descriptor: no handler interrupts a write."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reading


def restore_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def start_harness(order: Order) -> tuple[int, int]:
    """Returns the reading end of its output, and its process id, which is also its process group."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        become_harness(order, writing)
    os.close(writing)
    return reading, pid


def become_harness(order: Order, output: int) -> NoReturn:
    """In the child: own session and process group, no input, limits, another user where we are root; then exec."""
    try:
        restore_signals()
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if memory runs out, the kernel takes the harness, not its supervisor
        set_limits(order)
        become(order["uid"])
        os.umask(0o022)
        os.chdir(order.get("work_directory", "/work"))
        os.execvpe(order["command"][0], order["command"], order["environment"])
    except OSError as error:
        os.write(2, f"sandbox: cannot start {order['command'][0]}: {error.strerror}\n".encode())
        os._exit(127 if error.errno == errno.ENOENT else 126)
    finally:
        os._exit(125)


def become(uid: int | None) -> None:
    """Another user of the host, for good and without any capability."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def set_limits(order: Order) -> None:
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_FSIZE, order["file_bytes"])
    set_limit(resource.RLIMIT_DATA, order["memory_bytes"])
    if order.get("counts_processes", True):
        set_limit(resource.RLIMIT_NPROC, order["num_processes"])
    if order["cpu_s"] is not None:
        set_limit(resource.RLIMIT_CPU, int(order["cpu_s"]) + 1)


def set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
