"""The container engine of this host, asked through its socket.

From:  docker.py, reaper.py, pool.py.
To:    one client a thread; containers and images that carry our labels.
Holds: every error of the engine becomes a SandboxError that says what to do.
Never: talks to an engine on another host: directories of this one are mounted into its containers.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.errors
import requests

from environments.sandboxes.directory import installation
from environments.sandboxes.protocol import SandboxError

TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 5.0
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
OURS, SANDBOX, UID, BASE = "gyre.installation", "gyre.sandbox", "gyre.uid", "gyre.base"
"""Labels: whose, which sandbox, the user its files belong to, the image that a kept one was made from."""

HELD_BY = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "processors"}

_threads = threading.local()


def address() -> str:
    return os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET


def client() -> docker.APIClient:
    """Of this thread. Raises SandboxError where no engine answers."""
    known: dict[str, docker.APIClient] = _threads.__dict__.setdefault("clients", {})
    at = address()
    if at not in known:
        known[at] = new_client()
    return known[at]


def new_client() -> docker.APIClient:
    """Nobody else's; close it. Raises SandboxError where no engine answers."""
    at = address()
    if urlsplit(at).scheme != "unix":
        raise SandboxError(f"sandbox: DOCKER_HOST is {at}; docker sandboxes need an engine of this host (unix://...).")
    with errors("ask the container engine"):
        return docker.APIClient(base_url=at, version="auto", timeout=TIMEOUT_S)


def is_there() -> bool:
    """Whether anybody may listen at the socket; costs microseconds. An engine that was killed leaves its socket behind.

    True also where the socket may not be opened: who then asks is told why.
    """
    at = urlsplit(address())
    if at.scheme != "unix":
        return False
    with socket.socket(socket.AF_UNIX) as knock:
        knock.settimeout(PROBE_TIMEOUT_S)
        try:
            knock.connect(at.path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def why_unreachable() -> str | None:
    """None where an engine answers."""
    try:
        at = address()
        if urlsplit(at).scheme != "unix":
            return f"sandbox: DOCKER_HOST is {at}; docker sandboxes need an engine of this host (unix://...)."
        docker.APIClient(base_url=at, timeout=PROBE_TIMEOUT_S).ping()
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        return (
            f"sandbox: no container engine answers at {address()} ({short(error)}); install docker.io and start it, "
            "or set DOCKER_HOST to its socket."
        )
    return None


@dataclass(frozen=True, kw_only=True)
class Description:
    """cost: what this engine cannot hold for a sandbox; empty where it holds all."""

    detail: str
    cost: str = ""


def describe() -> Description:
    """What answers, and what it lacks."""
    with errors("ask the container engine"):
        said = client().info()
    detail = f"engine {said.get('ServerVersion', '?')} with {said.get('Driver', '?')} at {address()}"
    lacking = [name for key, name in HELD_BY.items() if not said.get(key)]
    cost = f"no limit on {', '.join(lacking)} of a docker sandbox is held by the kernel" if lacking else ""
    return Description(detail=detail, cost=cost)


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """What the engine says, in one sentence. A missing image is no reason to try again."""
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise SandboxError(f"sandbox: cannot {what}: {short(error)}", retry=False) from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise SandboxError(f"sandbox: cannot {what}: {short(error)}") from error


def short(error: Exception) -> str:
    said = getattr(error, "explanation", None) or str(error)
    return str(said).strip()[:500]


def label_filter(sandbox: str = "") -> dict[str, list[str]]:
    labels = [f"{OURS}={installation()}"]
    return {"label": [*labels, f"{SANDBOX}={sandbox}"] if sandbox else labels}


def own_containers(sandbox: str = "") -> list[dict[str, Any]]:
    """Of this installation, or of one sandbox: as the engine lists them."""
    with errors("list containers"):
        return list(client().containers(all=True, filters=label_filter(sandbox)))


def own_images(sandbox: str = "") -> list[dict[str, Any]]:
    """Images that sandboxes were kept as."""
    with errors("list images"):
        return [found for found in client().images(filters=label_filter(sandbox)) if SANDBOX in (found["Labels"] or {})]


def find_image(name: str) -> str | None:
    """Its id, where it is on this host."""
    with errors("look for an image"):
        try:
            return str(client().inspect_image(name)["Id"])
        except docker.errors.ImageNotFound:
            return None


def remove_container(container: str) -> None:
    with errors("remove a container"), contextlib.suppress(docker.errors.NotFound):
        client().remove_container(container, v=True, force=True)


def remove_image(image: str) -> None:
    with errors("remove an image"), contextlib.suppress(docker.errors.NotFound):
        client().remove_image(image, force=True)
