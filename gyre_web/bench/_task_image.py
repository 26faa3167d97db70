"""A task with a Dockerfile, made and built the way a user's is: what its cold and warm start cost beside a small image's.

From:  bench sandboxes.
To:    the image's reference, size and layers, and figures of starts from it.
Holds: the image begins with `gyre-base` (a Debian with Python, git and certificates, made by debootstrap), has layers of
       its own and a work tree of FILES files that every start copies; the report names all of it.
"""

import shutil
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings

from environments.images.base import base_reference
from environments.images.build import find_local
from environments.images.ensure import ensure_image, want_base, want_image
from environments.images.errors import ImageUnavailable
from environments.models import Task
from environments.sandboxes import Launch, SandboxError, get_sandboxes
from environments.sandboxes.engine_client import client
from environments.tasksets import import_taskset

FILES = 400
FILE_BYTES = 6_000
DOCKERFILE = """FROM gyre-base
ENV LANG=C.UTF-8
RUN mkdir -p /opt/tools && cp -r /usr/lib/python3* /opt/tools/ && git config --system user.name task
COPY work/ /work/
WORKDIR /work
RUN git init -q . && git add -A && git -c user.email=task@example.org commit -qm start
"""

Time = Callable[[Launch], float]


def measure_task_image(
    directory: Path, quick: bool, rounds: int, build_launch: Callable[..., Launch], cold: Time, warm: Callable[..., Any]
) -> dict[str, Any]:
    """{"skipped": why} where it cannot be had; quick: only from a base image that is here already."""
    reason = why_no_base(quick)
    if reason:
        return {"skipped": reason}
    settings.IMAGE_BUILD_NETWORK = "none"
    try:
        ensure_image(want_base(), stop=threading.Event())
        began = time.monotonic()
        image = ensure_image(want_image(make_task(directory)), stop=threading.Event())
    except (ImageUnavailable, SandboxError) as error:
        return {"skipped": str(error)}
    build_s = time.monotonic() - began
    launch = build_launch(image)
    began = time.monotonic()
    get_sandboxes("docker").launch(launch).remove()  # its facts and start tree are read once a machine
    first_ms = 1000 * (time.monotonic() - began)
    found = client().inspect_image(image)
    return {
        "image": str(found["RepoTags"][0]),
        "made_from": base_reference(),
        "dockerfile": DOCKERFILE.splitlines(),
        "size_mb": round(found["Size"] / 1e6, 1),
        "layers": len(found["RootFS"]["Layers"]),
        "work_files": FILES,
        "build_s": round(build_s, 1),
        "first_ms": round(first_ms, 1),
        "cold_ms": statistics.median(cold(launch) for _ in range(rounds)),
        "warm_ms": statistics.median(warm(launch, rounds)),
    }


def why_no_base(quick: bool) -> str:
    if find_local(base_reference()) is not None:
        return ""
    if quick:
        return f"{base_reference()} is not on this host; without --quick it is made (a minute)"
    return (
        "" if shutil.which("debootstrap") else "debootstrap is not installed, so there is no base image to build from"
    )


def make_task(directory: Path) -> Task:
    root = directory / "bench-task"
    for name in ("environment/work", "tests"):
        (root / "one" / name).mkdir(parents=True)
    (root / "one" / "environment" / "Dockerfile").write_text(DOCKERFILE)
    for number in range(FILES):
        path = root / "one" / "environment" / "work" / f"package_{number % 20}" / f"module_{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {number}\n" + "x = 1\n" * (FILE_BYTES // 6))
    (root / "one" / "task.toml").write_text("")
    (root / "one" / "instruction.md").write_text("Look around.\n")
    (root / "one" / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    taskset = import_taskset(name="bench-task", directory=root)
    return Task.objects.get(taskset=taskset)
