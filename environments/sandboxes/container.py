"""What a container is made of: the part of a launch that is settled when it is created, and the engine's words for it.

From:  docker.py and pool.py.
To:    the body of the engine's create request.
Holds: the allow-list of what is mounted; every limit and every privilege that is taken away stands here.
Never: asks the engine anything.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from environments.sandboxes import bubblewrap, python_runtime
from environments.sandboxes.bubblewrap import PROGRAM_FILES, PROGRAMS, SHM_BYTES, WRITABLE
from environments.sandboxes.cgroups import SPARE_MEMORY_BYTES, SPARE_PROCESSES
from environments.sandboxes.directory import installation, marker_of
from environments.sandboxes.engine_client import BASE, OURS, SANDBOX, UID
from environments.sandboxes.image_facts import ImageFacts, load_facts
from environments.sandboxes.protocol import Launch, Limits, Mount, SandboxError

SLOTS = {"agent": "/gyre/harness", "verifier": "/tests"}
"""Where files of one launch lie, by its purpose: a directory of the sandbox that is filled when the order is given."""
LOG = {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}}
"""Only what the supervisor itself complains of; a harness's output has a file of its own."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """All launches of one form can be served by the same prepared container. mounts: beside the slot."""

    facts: ImageFacts
    purpose: str
    gateway: bool
    egress: str
    limits: Limits
    mounts: tuple[Mount, ...]

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self), default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def user(self, sandbox: UUID) -> int:
        """Who its programs are: a user id of its own where we are root, else ours; for an image that was kept, as before."""
        if self.facts.uid is not None:
            return self.facts.uid
        return choose_user(sandbox)

    def is_slot(self, mount: Mount) -> bool:
        return mount.target == SLOTS[self.purpose] and mount.source.is_dir()


def build_form(launch: Launch) -> Form:
    form = Form(
        facts=load_facts(str(launch.image)),
        purpose=launch.purpose,
        gateway=launch.gateway,
        egress=str(launch.egress.parent) if launch.egress else "",
        limits=launch.limits,
        mounts=(),
    )
    return Form(**(form.__dict__ | {"mounts": tuple(m for m in launch.read_only if not form.is_slot(m))}))


def choose_user(sandbox: UUID) -> int:
    uid = bubblewrap.choose_identity(sandbox).uid
    if uid is not None:
        return uid
    if os.geteuid() == 0:
        raise SandboxError(
            "sandbox: this root may not give files to other users, and docker sandboxes never run as root; start the "
            "workers as an ordinary user of the group docker, or as full root.",
            retry=False,
        )
    return os.geteuid()


def name_of(sandbox: UUID) -> str:
    return f"gyre-{sandbox}"


def read_etc(facts: ImageFacts, uid: int) -> Mapping[str, str]:
    """The image's own users, and the agent."""
    passwd = facts.passwd or "root:x:0:0:root:/root:/bin/sh\n"
    group = facts.group or "root:x:0:\n"
    return {
        "passwd": f"{passwd.rstrip()}\nagent:x:{uid}:{uid}:agent:/home/agent:/bin/sh\n",
        "group": f"{group.rstrip()}\nagent:x:{uid}:\n",
    }


def build_config(
    form: Form, sandbox: UUID, directory: Path, mounts: Sequence[Mount], gateway: Path | None
) -> dict[str, Any]:
    uid = form.user(sandbox)
    return {
        "Image": form.facts.image,
        "Hostname": "sandbox",
        "User": f"{uid}:{uid}",
        "WorkingDir": "/",
        "Entrypoint": [*python_runtime.COMMAND, "-I", "-S", "/gyre/bin/supervisor.py", marker_of(sandbox), "/gyre/run"],
        "Cmd": [],
        "Env": [],
        "Healthcheck": {"Test": ["NONE"]},
        "NetworkDisabled": True,
        "Labels": {OURS: installation(), SANDBOX: str(sandbox), UID: str(uid), BASE: form.facts.image},
        "HostConfig": {
            "Binds": [*own_binds(form, directory, gateway), *(f"{m.source}:{m.target}:ro" for m in mounts)],
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": LOG,
            "OomScoreAdj": 500,
            "ShmSize": SHM_BYTES,
            **limits_of(form.limits),
        },
    }


def limits_of(limits: Limits) -> dict[str, Any]:
    memory = limits.memory_bytes + SPARE_MEMORY_BYTES
    found: dict[str, Any] = {
        "PidsLimit": limits.num_processes + SPARE_PROCESSES,
        "Memory": memory,
        "MemorySwap": memory,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
    }
    if limits.cpus is not None:
        found["NanoCpus"] = int(min(limits.cpus, os.cpu_count() or 1) * 1e9)
    return found


def own_binds(form: Form, directory: Path, gateway: Path | None) -> list[str]:
    targets = WRITABLE | {"work": form.facts.work_directory}
    binds = [f"{directory / name}:{target}" for name, target in targets.items()]
    binds.append(f"{directory / 'slot'}:{SLOTS[form.purpose]}:ro")
    binds += [f"{directory / 'etc' / name}:/etc/{name}:ro" for name in ("passwd", "group")]
    binds += [f"{PROGRAMS / name}:/gyre/bin/{name}:ro" for name in (*PROGRAM_FILES, "pipe.py")]
    if gateway is not None:
        binds.append(f"{gateway}:/gyre/gateway:ro")
    if form.egress:
        binds.append(f"{form.egress}:/gyre/egress:ro")
    return binds
