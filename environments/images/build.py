"""Make one image: build a task's Dockerfile, or pull a name; every line that the engine says is passed on.

From:  ensure.py, in the thread that holds the row's lease.
To:    an image of this host's container engine under its reference.
Holds: the same context on the same bases has the same reference, so it is built once; a failure names the image, the
       step and the remedy.
Never: touches the database.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import docker.errors
import docker.utils.build
import requests
import urllib3.exceptions
from django.conf import settings

from environments.images.base import NAME as BASE_NAME
from environments.images.base import Say, base_reference
from environments.images.deadline import Deadline
from environments.images.errors import ImageUnavailable
from environments.sandboxes.engine_client import client, errors, short
from environments.tasksets.harbor import digest_directory

TASK_NAME = "gyre-task"
DOCKERFILE = "Dockerfile"
FAMILIES = ("debian", "ubuntu", "python")
"""What the base image can stand in for, where the operator says so."""
FROM = re.compile(r"^\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE)
ARG = re.compile(r"^\s*ARG\s+(\w+)=(\S+)\s*$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Bases:
    """What a Dockerfile starts from. stand_ins: name in the Dockerfile -> name of what is taken for it."""

    names: tuple[str, ...]
    stand_ins: dict[str, str]


def context_digest(context: Path) -> str:
    return digest_directory(context)


def task_reference(context: Path) -> str:
    """Settings that change what is built are part of the name: a stand-in never passes for the real image."""
    stands = sorted(set(settings.IMAGE_STAND_INS) & set(FAMILIES))
    text = f"{context_digest(context)}\0{stands}\0{base_reference() if stands else ''}"
    return f"{TASK_NAME}:{hashlib.sha256(text.encode()).hexdigest()[:24]}"


# ---- what a Dockerfile starts from


def read_bases(dockerfile: str) -> list[str]:
    """Every image that a FROM names, in order; stages of its own and `scratch` are none."""
    found: list[str] = []
    stages: set[str] = {"scratch"}
    arguments: dict[str, str] = {}
    for line in dockerfile.splitlines():
        if argument := ARG.match(line):
            arguments.setdefault(argument[1], argument[2].strip("\"'"))
        if matched := FROM.match(line):
            name = _fill(matched[1], arguments)
            if name.lower() not in stages and name not in found:
                found.append(name)
            if matched[2]:
                stages.add(matched[2].lower())
    return found


def _fill(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)(?::-[^}]*)?\}?", lambda match: arguments.get(match[1], match[0]), text)


def family_of(name: str) -> str:
    """`python` for python:3.12-slim and docker.io/library/python; empty for what is no such family."""
    plain = re.sub(r"^(docker\.io/)?(library/)?", "", name).partition("@")[0].partition(":")[0]
    return plain if plain in FAMILIES else ""


def replace_bases(dockerfile: str, stand_ins: dict[str, str]) -> str:
    """The Dockerfile with other images in its FROM lines."""
    lines = []
    arguments: dict[str, str] = {}
    for line in dockerfile.splitlines():
        if argument := ARG.match(line):
            arguments.setdefault(argument[1], argument[2].strip("\"'"))
        matched = FROM.match(line)
        other = stand_ins.get(_fill(matched[1], arguments)) if matched else None
        lines.append(line.replace(matched[1], other, 1) if matched and other else line)
    return "\n".join(lines) + "\n"


# ---- the engine


def find_local(reference: str) -> dict[str, Any] | None:
    """What the engine knows of an image that is here."""
    with errors(f"look for the image {reference}"):
        try:
            found: dict[str, Any] = client().inspect_image(reference)
            return found
        except docker.errors.ImageNotFound:
            return None


def pull(name: str, say: Say) -> str:
    """Raises ImageUnavailable where no registry gives it."""
    say(f"pulling {name}")
    repository, tag = docker.utils.parse_repository_tag(name)
    try:
        _follow(client().pull(repository, tag=tag or "latest", stream=True, decode=True), say)
    except (docker.errors.APIError, _EngineSaid) as error:
        raise ImageUnavailable(_cannot_pull(name, short(error))) from error
    found = find_local(name)
    if found is None:
        raise ImageUnavailable(_cannot_pull(name, "the engine pulled something else"))
    return str(found["Id"])


def _cannot_pull(name: str, said: str) -> str:
    message = (
        f"The image {name} is not on this host and cannot be pulled ({said}). Load it (docker load, or docker tag an "
        "image that is here), make a registry reachable"
    )
    if family_of(name):
        message += f", or let this machine's base image stand in for it: GYRE_IMAGE_STAND_INS={family_of(name)}"
    return f"{message}."


def prepare_bases(dockerfile: str, ensure_base: Callable[[], str], say: Say) -> Bases:
    """Have every FROM on this host: local, else pulled, else stood in for where that is allowed."""
    names = read_bases(dockerfile)
    stand_ins: dict[str, str] = {}
    for name in names:
        if name.partition(":")[0] == BASE_NAME:
            stand_ins[name] = ensure_base()
        elif find_local(name) is None:
            try:
                pull(name, say)
            except ImageUnavailable:
                if family_of(name) not in settings.IMAGE_STAND_INS:
                    raise
                stand_ins[name] = ensure_base()
                say(
                    f"*** STAND-IN: {name} cannot be had; {stand_ins[name]} takes its place. Results are not the task's."
                )
    return Bases(names=tuple(names), stand_ins=stand_ins)


def build(context: Path, reference: str, bases: Bases, timeout_s: float, say: Say) -> str:
    """Build the context; returns the engine's id. Raises ImageUnavailable with the failing step.

    timeout_s: the task's build_timeout_sec, from the first step to the last; what FROM names is here already.
    """
    dockerfile = replace_bases((context / DOCKERFILE).read_text(), bases.stand_ins)
    say(f"building {reference} from {len(docker.utils.build.exclude_paths(str(context), []))} files")
    last = Last(say)
    with pack(context, dockerfile) as packed, Deadline(timeout_s) as deadline:
        try:
            _follow(
                deadline.client.build(
                    fileobj=packed,
                    custom_context=True,
                    dockerfile=DOCKERFILE,
                    tag=reference,
                    rm=True,
                    forcerm=True,
                    decode=True,
                    network_mode=settings.IMAGE_BUILD_NETWORK or None,
                ),
                last,
            )
        except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if not deadline.is_over:
                raise ImageUnavailable(_cannot_build(context, short(error), last.step)) from error
        except _EngineSaid as error:
            raise ImageUnavailable(_cannot_build(context, short(error), last.step)) from error
    if deadline.is_over:
        raise ImageUnavailable(_too_slow(context, timeout_s, last.step))
    found = find_local(reference)
    if found is None:
        raise ImageUnavailable(f"The image of {context} was built, but the engine does not have {reference}.")
    return str(found["Id"])


def _cannot_build(context: Path, said: str, step: str) -> str:
    return (
        f"The image of {context} cannot be built: {said}, {_at(step)}. The whole log is with the image; mend the "
        "Dockerfile, then build again."
    )


def _too_slow(context: Path, timeout_s: float, step: str) -> str:
    return (
        f"The image of {context} was not built within environment.build_timeout_sec = {timeout_s:g} s (task.toml) and "
        f"was ended {_at(step)}. Raise build_timeout_sec and import the task set again, or make that step quicker."
    )


def _at(step: str) -> str:
    return f"at {step}" if step else "before its first step"


class Last:
    """Passes lines on and remembers which step of the Dockerfile was begun last."""

    def __init__(self, say: Say) -> None:
        self.pass_on = say
        self.step = ""

    def __call__(self, line: str) -> None:
        if line.startswith("Step "):
            self.step = line.strip()
        self.pass_on(line)


def pack(context: Path, dockerfile: str) -> BinaryIO:
    """The context as an archive, without what .dockerignore names, with this text as its Dockerfile."""
    ignore = context / ".dockerignore"
    patterns = [line.strip() for line in ignore.read_text().splitlines()] if ignore.is_file() else []
    kept = [line for line in patterns if line and not line.startswith("#")]
    files = docker.utils.build.exclude_paths(str(context), kept, dockerfile=DOCKERFILE)
    packed: BinaryIO = docker.utils.build.create_archive(
        root=str(context),
        files=sorted(path for path in files if path != DOCKERFILE),
        extra_files=[(DOCKERFILE, dockerfile)],
    )
    return packed


class _EngineSaid(Exception):
    """An error inside a stream of progress."""


def _follow(events: Iterator[dict[str, Any]], say: Say) -> None:
    layers: dict[str, str] = {}
    for event in events:
        if "error" in event:
            say(str(event["error"]))
            raise _EngineSaid(str(event["error"]).strip())
        if text := event.get("stream"):
            for line in _lines(text):
                say(line)
        elif status := event.get("status"):
            layer = str(event.get("id", ""))
            if layers.get(layer) != status:  # the engine repeats a layer's progress many times a second
                layers[layer] = status
                say(f"{layer}: {status}" if layer else str(status))


def _lines(text: str) -> Sequence[str]:
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]
