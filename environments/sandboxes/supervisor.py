"""Process 1 of a sandbox: start the harness, keep what it says and how it ended, and leave nothing behind.

From:  process.py, which gives the order (JSON) on stdin and passes two open files: `state` and `ready`; or docker.py,
       which gives a directory with the order (a FIFO: a prepared sandbox waits in it), `output` and `state`.
To:    stdout (the host's output file, bounded), the state file: one JSON object, padded, written in one piece.
Holds: when the harness's own process has ended, or must end, every other process in here is killed before the state
       says so; nothing in here can touch the files on the host that carry output and state.
Never: imports more than the standard library and the two files beside it (supervisor_start, supervisor_watch), needs the
       network, or depends on the worker that launched it being alive.

SIGTERM means: end the harness (SIGTERM to its group, SIGKILL to all after `grace_s`), then leave. A second one: SIGKILL
to all now. The last output is read and the exit code recorded in either case.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False  # `import typing` would cost 5 ms of every start
if TYPE_CHECKING:
    from environments.sandboxes.supervisor_start import Order, become, install_signals, restore_signals, start_harness
    from environments.sandboxes.supervisor_watch import TICK_S, measure, start_disk_watcher
else:  # isolated Python does not look beside its script; afterwards it must not either
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from supervisor_start import become, install_signals, restore_signals, start_harness
    from supervisor_watch import TICK_S, measure, start_disk_watcher

    sys.path.pop(0)

STATE_BYTES = 512
RELAY_PORT = 8100
EGRESS_PORT = 8101
DRAIN_S = 5.0
SILENCE_S = 30.0
"""A disk watcher that says nothing for so long was stopped by somebody in here."""


def main() -> None:
    if len(sys.argv) == 3:
        order, state_fd, ready_fd = take_handover(sys.argv[2])
    else:
        state_fd, ready_fd = int(sys.argv[2]), int(sys.argv[3])
        with os.fdopen(0, "rb", closefd=False) as orders:
            order = json.loads(orders.read())
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    for fd in (state_fd, ready_fd):
        os.set_inheritable(fd, False)
    raise SystemExit(Supervisor(order, state_fd, ready_fd).run())


def take_handover(directory: str) -> tuple[Order, int, int]:
    """The order and the open state file; waits until the order comes. Output becomes stdout.

    The files' names go before the harness starts, and nothing of this process can be opened through /proc: the harness
    is the same user and could otherwise write where we write. The host has names of its own for them.
    """
    forbid_looking_in()
    with open(f"{directory}/order", "rb") as orders:
        order = json.loads(orders.read())
    state_fd = os.open(f"{directory}/state", os.O_RDWR)
    output = os.open(f"{directory}/output", os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.close(output)
    for name in ("order", "state", "output"):
        os.unlink(f"{directory}/{name}")
    return order, state_fd, os.open("/dev/null", os.O_WRONLY)


def forbid_looking_in() -> None:
    import ctypes  # costs some ms, only needed here

    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


class Supervisor:
    def __init__(self, order: Order, state_fd: int, ready_fd: int) -> None:
        self.order = order
        self.state_fd = state_fd
        self.ready_fd = ready_fd
        self.limit = ""
        self.is_clear = False
        self.exit_code: int | None = None
        self.kill_at: float | None = None
        self.cpu_s = 0.0
        self.written = 0
        self.relays: dict[str, int] = {}
        self.heard_at = time.monotonic()
        self.started_at = time.time()
        self.deadline = time.monotonic() + order["timeout_s"]

    def run(self) -> int:
        self.wake_fd = install_signals()
        self.listeners = {"relay.py": listen(RELAY_PORT)} if self.order["relay"] else {}
        if self.order.get("egress"):
            self.listeners["pipe.py"] = listen(EGRESS_PORT)
        self.output_fd, self.harness = start_harness(self.order)
        self.start_relays()  # a call of the harness waits in the listener's backlog until they are up
        self.disk_fd, self.watcher = start_disk_watcher(self.order)
        self.record()
        with contextlib.suppress(OSError):
            os.write(self.ready_fd, b"1")
        os.close(self.ready_fd)
        self.watch()
        self.clear()
        self.is_clear = True
        self.record()
        code = self.exit_code or 0
        return code if code >= 0 else 128 - code

    def start_relays(self) -> None:
        """Those that do not run. A full process table is no reason to end: the next tick tries again."""
        for name, listener in self.listeners.items():
            if name not in self.relays:
                with contextlib.suppress(OSError):
                    self.relays[name] = self.start_relay(name, listener)

    def start_relay(self, name: str, listener: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        restore_signals()
        python = self.order.get("python", [sys.executable])
        os.set_inheritable(listener, True)
        os.dup2(2, 1)
        become(self.order["relay_uid"])
        os.execv(python[0], [*python, "-I", "-S", f"/gyre/bin/{name}", str(listener)])
        raise AssertionError("execv returned")

    def watch(self) -> None:
        """Until the harness has ended: output, signals, limits."""
        poll = select.poll()
        for fd in (self.wake_fd, self.output_fd, self.disk_fd):
            poll.register(fd, select.POLLIN)
        next_tick = time.monotonic() + TICK_S
        while self.exit_code is None:
            for fd, _ in poll.poll(max(0.0, next_tick - time.monotonic()) * 1000):
                if fd == self.wake_fd:
                    self.on_signals(os.read(fd, 4096))
                elif fd == self.output_fd:
                    if not self.take_output():
                        poll.unregister(fd)
                elif not self.on_disk(os.read(fd, 65536)):
                    poll.unregister(fd)
                    self.replace_watcher()
            if time.monotonic() >= next_tick:
                self.tick()
                poll.register(self.disk_fd, select.POLLIN)
                next_tick = time.monotonic() + TICK_S

    def on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            if self.kill_at is not None:
                kill_all()
            self.end("stopped")
        if signal.SIGCHLD in numbers:
            self.reap()

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.harness:
                    self.exit_code = os.waitstatus_to_exitcode(status)
                else:
                    self.relays = {name: relay for name, relay in self.relays.items() if relay != pid}
                    self.start_relays()

    def on_disk(self, data: bytes) -> bool:
        """False: the watcher is gone."""
        self.heard_at = time.monotonic()
        if data and max(map(int, data.split())) > self.order["disk_bytes"]:
            self.end("disk")
        return bool(data)

    def replace_watcher(self) -> None:
        """Somebody in here killed it, and may have written meanwhile: a disk that is not watched is a full one."""
        os.close(self.disk_fd)
        try:
            self.disk_fd, self.watcher = start_disk_watcher(self.order)
        except OSError:  # no process to be had
            (self.disk_fd, _), self.watcher = os.pipe(), 0
            self.end("disk", at_once=True)

    def take_output(self) -> bool:
        try:
            data = os.read(self.output_fd, 65536)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return True
            raise
        room = self.order["output_bytes"] - self.written
        if data and room > 0:
            if len(data) > room:
                data = data[:room] + b"\n[output beyond this size is not kept]\n"
            write_all(1, data)
            self.written += len(data)
        return bool(data)

    def tick(self) -> None:
        now = time.monotonic()
        cpu_s, num_processes, memory_bytes = measure((1, *self.relays.values(), self.watcher))
        self.cpu_s = max(self.cpu_s, cpu_s)
        order = self.order
        self.start_relays()
        if now > self.heard_at + SILENCE_S:
            self.end("disk", at_once=True)
        if now > self.deadline:
            self.end("time")
        if order["cpu_s"] is not None and self.cpu_s > order["cpu_s"]:
            self.end("cpu")
        if num_processes > order["num_processes"]:
            self.end("processes", at_once=True)
        if memory_bytes > order["memory_bytes"]:
            self.end("memory", at_once=True)
        if self.kill_at is not None and now > self.kill_at:
            kill_all()
        self.record()

    def end(self, limit: str, at_once: bool = False) -> None:
        """Ask the harness's group to end; after the grace, or at once, everything in here is killed."""
        if self.kill_at is not None:
            return
        self.limit = limit
        self.kill_at = time.monotonic() + (0.0 if at_once else self.order["grace_s"])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.harness, signal.SIGKILL if at_once else signal.SIGTERM)
        self.record()

    def clear(self) -> None:
        """Kill what the harness left, then take the output that is still in the pipe."""
        usage_before = self.cpu_s
        kill_all()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s = max(usage_before, children.ru_utime + children.ru_stime)
        os.set_blocking(self.output_fd, False)
        deadline = time.monotonic() + DRAIN_S
        poll = select.poll()
        poll.register(self.output_fd, select.POLLIN)
        while time.monotonic() < deadline and (not poll.poll(100) or self.take_output()):
            pass

    def record(self) -> None:
        state = {
            "running": not self.is_clear,
            "exit_code": self.exit_code if self.is_clear else None,
            "timed_out": self.limit == "time",
            "limit": self.limit,
            "cpu_s": round(self.cpu_s, 3),
            "started_at": self.started_at,
        }
        os.pwrite(self.state_fd, json.dumps(state).encode().ljust(STATE_BYTES), 0)


def listen(port: int) -> int:
    """A relay's socket, made before the harness starts, so that its first connect cannot come too early."""
    import socket  # costs 4 ms, only needed here

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener.detach()


def kill_all() -> None:
    """Everything in this process namespace but us."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def write_all(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk of the host costs output, not the rollout
        while data:
            data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
