"""Docker sandboxes: the same supervisor, relay and host directory as a process sandbox, around a task's image.

From:  a Launch whose image is on this host.
To:    DATA_DIR/sandboxes/<id>/ (directory.py) bound into a container gyre-<id> without a network.
Holds: no capability, no new privilege, a user of its own that is never root, limits on processes, memory and processors
       by the kernel, on disk by measuring (see below). Killing process 1 ends every process in it, also what was started
       with `docker exec`. A container survives its launcher; its name and label say whose it is.
Never: runs anything of the image before the harness; shows the engine's socket; lets a container be without row and lease.

What can be prepared before a rollout is known (container.py's Form) waits in a warm sandbox; the rest is the order.
Disk: overlay2 without project quotas has no limit, so the supervisor measures the bound directories every quarter of a
second and this module the container's own layer (layers.py); a sandbox that is over is ended, a moment late (decision 7).
"""

import contextlib
import errno
import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker.errors

from environments.models import Sandbox
from environments.sandboxes import engine_client, image_facts, layers, python_runtime
from environments.sandboxes.container import SLOTS, Form, build_config, build_form, name_of, read_etc
from environments.sandboxes.directory import (
    KILL_TIMEOUT_S,
    LAST_WORDS_S,
    DirectoryHandle,
    build_order,
    check_mounts,
    create_row,
    directory_of,
    fill_tree,
    gateway_directory,
    host_name,
    make_writable,
    prepare_directory,
    read_state,
    readable_source,
    write_etc,
)
from environments.sandboxes.host import is_running, start_time_of, wait_gone
from environments.sandboxes.protocol import EGRESS_URL, Launch, Mount, SandboxError, Status
from environments.sandboxes.trees import remove_tree

START_TIMEOUT_S = 60.0
POLL_S = 0.002
KEPT = "gyre-kept"
NO_PROXY = "127.0.0.1,localhost"


class DockerSandboxes:
    kind = Sandbox.Kind.DOCKER.value

    def check(self) -> str | None:
        return engine_client.why_unreachable()

    def launch(self, launch: Launch) -> "DockerHandle":
        from environments.sandboxes.pool import POOL

        if not launch.image:
            raise SandboxError("sandbox: docker sandboxes need an image; the launch names none.", retry=False)
        check_mounts(launch.read_only)
        form = build_form(launch)
        handle = POOL.claim(form, launch) or prepare(form, create_row(self.kind, launch))
        try:
            give_order(handle, form, launch)
        except (OSError, SandboxError) as error:
            remove_failed(handle)
            raise as_sandbox_error(error) from error
        POOL.note(form)
        return handle

    def start_tree(self, image: str | None) -> Path | None:
        return image_facts.start_tree(image) if image else None

    def attach(self, row: Sandbox) -> "DockerHandle | None":
        if row.host != host_name() or not row.handle or not Path(row.directory).is_dir():
            return None
        return DockerHandle(row)


class DockerHandle(DirectoryHandle):
    def __init__(self, row: Sandbox) -> None:
        super().__init__(row)
        self.container = name_of(row.id)
        self.measure_at = time.monotonic() + layers.WALKED_EVERY_S

    def status(self) -> Status:
        status = super().status()
        if status.running and time.monotonic() > self.measure_at:
            self._measure_layer()
        return replace(status, limit="disk") if (self.directory / "over").exists() else status

    def _measure_layer(self) -> None:
        """What was written outside the bound directories counts as well."""
        began = time.monotonic()
        limit, layer = int(self.row.handle.get("disk_bytes", 0)), str(self.row.handle.get("layer", ""))
        with contextlib.suppress(SandboxError):  # an engine that does not answer: next time
            if limit and layers.is_over(limit, str(self.row.handle["container"]), layer):
                (self.directory / "over").touch()
                self.stop()
        self.measure_at = time.monotonic() + max(layers.interval_s(layer), 20 * (time.monotonic() - began))

    def stop(self, grace_s: float = 2.0) -> None:
        processes = self.process_ids()
        asking = [grace_s, LAST_WORDS_S] if grace_s > 0 else []
        for signal, patience_s in [*(("SIGTERM", s) for s in asking), ("SIGKILL", KILL_TIMEOUT_S)]:
            if any(map(is_running, processes)):
                self._signal(signal)
            if wait_gone(processes, patience_s):
                break
        else:
            raise SandboxError(f"sandbox: container {self.container} does not end, although killed.")
        self.mark_stopped()

    def _signal(self, signal: str) -> None:
        with engine_client.errors("end a container"):
            try:
                engine_client.client().kill(self.container, signal)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                if error.status_code != 409:  # it has ended meanwhile
                    raise

    def keep_image(self) -> str:
        name = f"{KEPT}:{self.row.id}"
        with engine_client.errors("keep the sandbox as an image"):
            with contextlib.suppress(docker.errors.ImageNotFound):
                return str(engine_client.client().inspect_image(name)["Id"])
            kept = engine_client.client().commit(self.container, repository=KEPT, tag=str(self.row.id))
            return str(kept["Id"])

    def remove(self) -> None:
        """Also where the engine lost the container, or never had it."""
        self.stop(grace_s=0.0)
        engine_client.remove_container(self.container)
        engine_client.remove_image(f"{KEPT}:{self.row.id}")
        remove_tree(self.directory)


def prepare(form: Form, row: Sandbox) -> DockerHandle:
    """A started container whose supervisor waits for its order."""
    handle = DockerHandle(row)
    directory, uid = handle.directory, form.user(row.id)
    try:
        prepare_directory(directory, uid)
        make_writable(directory / "work", uid)
        make_writable(directory / "slot", uid)
        write_etc(directory, read_etc(form.facts, uid))
        prepare_handover(directory, uid)
        mounts = [
            Mount(source=readable_source(directory, mount, uid), target=mount.target)
            for mount in {mount.target: mount for mount in (*python_runtime.mounts(), *form.mounts)}.values()
        ]
        gateway = gateway_directory(uid) if form.gateway else None
        config = build_config(form, row.id, directory, mounts, gateway)
        known = {"disk_bytes": form.limits.disk_bytes, "form": form.key}
        row.handle = row.handle | start(config, handle.container) | known
        row.save(update_fields=["handle"])
    except (OSError, SandboxError) as error:
        remove_failed(handle)
        raise as_sandbox_error(error) from error
    return handle


def prepare_handover(directory: Path, uid: int | None) -> None:
    """Files that process 1 opens in /gyre/run and whose names there it removes; ours, in `directory`, stay."""
    run = directory / "run"
    os.mkfifo(run / "order", 0o600)
    for name in ("output", "state"):
        (directory / name).touch(mode=0o600)
        os.link(directory / name, run / name)
    if uid is not None:
        for name in ("order", "output", "state"):
            os.chown(run / name, uid, uid)


def start(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns what the row's handle must be."""
    with engine_client.errors("start a container"):
        api = engine_client.client()
        container = api.create_container_from_config(config, name=name)["Id"]
        api.start(container)
        inspected = api.inspect_container(container)
    pid = int(inspected["State"]["Pid"])
    handle = {"container": container, "pid": pid, "start_time": start_time_of(pid) or 0}
    return handle | {"layer": layers.layer_directory(inspected)}


def give_order(handle: DockerHandle, form: Form, launch: Launch) -> None:
    """Everything that could not be prepared: the work tree, the files of this launch, the command."""
    directory, uid = handle.directory, form.user(handle.row.id)
    source = launch.work_tree or image_facts.start_tree(form.facts.image)
    fill_tree(directory / "work", source, uid)
    slot = next((mount.source for mount in launch.read_only if form.is_slot(mount)), None)
    fill_tree(directory / "slot", slot, uid)
    deadline = time.monotonic() + START_TIMEOUT_S
    send(handle, json.dumps(complete_order(form, launch)).encode(), deadline)
    wait_started(handle, deadline)


def complete_order(form: Form, launch: Launch) -> dict[str, Any]:
    order = build_order(launch)
    environment = {**form.facts.environment, **order["environment"]}
    environment["PATH"] = join_paths(order["environment"]["PATH"], form.facts.environment.get("PATH", ""))
    if launch.egress:
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), EGRESS_URL)
        environment |= proxies | {"no_proxy": NO_PROXY, "NO_PROXY": NO_PROXY}
    return order | {
        "environment": environment,
        "uid": None,
        "relay_uid": None,
        "work_directory": form.facts.work_directory,
        "python": list(python_runtime.COMMAND),
        "egress": launch.egress is not None,
        "counts_processes": False,
        "writable": [*order["writable"][1:], form.facts.work_directory, "/var/tmp", "/run/lock"],
    }


def join_paths(wanted: str, image: str) -> str:
    """The harness's own programs first, then the image's, then what the harness wants beside them."""
    words = wanted.split(":")
    own = [word for word in words if word.startswith(SLOTS["agent"])]
    return ":".join(dict.fromkeys(word for word in [*own, *image.split(":"), *words] if word))


def send(handle: DockerHandle, order: bytes, deadline: float) -> None:
    """Into the FIFO, when the supervisor has opened it. Its other end is ours: nothing of the harness runs yet."""
    path = handle.directory / "run" / "order"
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        check_starting(handle, handle.is_alive(), deadline)
        time.sleep(POLL_S)
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise SandboxError("sandbox: its order file was exchanged.")
        os.set_blocking(fd, True)
        while order:
            order = order[os.write(fd, order) :]
    finally:
        os.close(fd)


def wait_started(handle: DockerHandle, deadline: float) -> None:
    while True:
        is_alive = handle.is_alive()  # before the state is read: a short program may have begun and ended in between
        if read_state(handle.directory):
            return
        check_starting(handle, is_alive, deadline)
        time.sleep(POLL_S)


def check_starting(handle: DockerHandle, is_alive: bool, deadline: float) -> None:
    if is_alive and time.monotonic() < deadline:
        return
    said = b""
    with contextlib.suppress(SandboxError, docker.errors.DockerException):
        said = engine_client.client().logs(handle.container, tail=20)
    text = said.decode(errors="replace").strip()[-500:]
    raise SandboxError(f"sandbox: the container did not start: {text or 'it ended without a word'}")


def remove_failed(handle: DockerHandle) -> None:
    """What cannot be removed now is the reaper's."""
    with contextlib.suppress(SandboxError, OSError):
        handle.remove()
    if not handle.directory.exists():
        Sandbox.objects.filter(pk=handle.row.pk, purpose=Sandbox.Purpose.WARM).delete()


def as_sandbox_error(error: Exception) -> SandboxError:
    return error if isinstance(error, SandboxError) else SandboxError(f"sandbox: cannot set up: {error}")


__all__ = ["DockerHandle", "DockerSandboxes", "directory_of", "prepare"]
