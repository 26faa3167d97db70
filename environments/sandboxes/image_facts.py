"""What a sandbox must know of an image before it starts one: where its programs work, as whom, with what around them.

From:  the container engine, once an image.
To:    DATA_DIR/image-facts/<id>/: facts.json, and `work`, the content of its working directory.
Holds: a directory is complete or absent. Of the image only plain files, directories and links are taken.
Never: starts anything of the image.
"""

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import docker.errors
from django.conf import settings

from environments.sandboxes.directory import installation
from environments.sandboxes.engine_client import BASE, OURS, UID, client, errors
from environments.sandboxes.protocol import SandboxError

DEFAULT_WORK_DIRECTORY = "/work"
MAX_TREE_BYTES = 8 << 30
NOT_A_WORK_DIRECTORY = (
    "/",
    "/proc",
    "/sys",
    "/dev",
    "/etc",
    "/usr",
    "/bin",
    "/lib",
    "/gyre",
    "/tmp",
    "/logs",
    "/tests",
)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """uid: the user whose files are in it, where it was kept from a sandbox. work_directory: the image's WORKDIR."""

    image: str
    work_directory: str
    environment: dict[str, str]
    passwd: str
    group: str
    uid: int | None = None


def load_facts(image: str) -> ImageFacts:
    """Raises SandboxError where the image is not here or cannot carry a sandbox."""
    with errors(f"find the image {image}"):
        inspected = client().inspect_image(image)
    labels = (inspected["Config"] or {}).get("Labels") or {}
    if labels.get(OURS) == installation() and BASE in labels:  # kept from a sandbox: as its base, but for its user
        base = load_facts(labels[BASE])
        return ImageFacts(**(asdict(base) | {"image": inspected["Id"], "uid": int(labels[UID])}))
    directory = facts_directory(inspected["Id"])
    if not directory.is_dir():
        examine(inspected, directory)
    return ImageFacts(**json.loads((directory / "facts.json").read_text()))


def start_tree(image: str) -> Path | None:
    """What the image holds where programs work; None: nothing."""
    facts = load_facts(image)
    tree = facts_directory(facts.image) / "work"
    return tree if tree.is_dir() else None


def facts_directory(image: str) -> Path:
    return Path(settings.DATA_DIR) / "image-facts" / image.removeprefix("sha256:")[:32]


def examine(inspected: dict, directory: Path) -> None:
    config = inspected["Config"] or {}
    if config.get("Volumes"):
        raise SandboxError(
            f"sandbox: the image declares volumes ({', '.join(config['Volumes'])}), which can be neither limited nor "
            "kept; remove VOLUME from its Dockerfile.",
            retry=False,
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=directory.parent))
    with errors("look into the image"):
        container = client().create_container(inspected["Id"], command=["none"], labels={OURS: installation()})["Id"]
    try:
        facts = ImageFacts(
            image=inspected["Id"],
            work_directory=work_directory(config.get("WorkingDir") or ""),
            environment=dict(word.split("=", 1) for word in config.get("Env") or [] if "=" in word),
            passwd=read_text(container, "/etc/passwd", aside),
            group=read_text(container, "/etc/group", aside),
        )
        copy_tree_out(container, facts.work_directory, aside)
        (aside / "facts.json").write_text(json.dumps(asdict(facts)))
        os.rename(aside, directory)
    except OSError:
        if not directory.is_dir():
            raise
    finally:
        with errors("remove a container"):
            client().remove_container(container, force=True)
        shutil.rmtree(aside, ignore_errors=True)


def work_directory(named: str) -> str:
    path = os.path.normpath(named or DEFAULT_WORK_DIRECTORY)
    return DEFAULT_WORK_DIRECTORY if path in NOT_A_WORK_DIRECTORY or not path.startswith("/") else path


def read_text(container: str, path: str, aside: Path) -> str:
    """A file of the image; empty where it has none."""
    target = aside / "read"
    extract(container, path, target)
    files = [found for found in (target.iterdir() if target.is_dir() else []) if found.is_file()]
    text = files[0].read_text(errors="replace") if files and not files[0].is_symlink() else ""
    shutil.rmtree(target, ignore_errors=True)
    return text


def copy_tree_out(container: str, path: str, aside: Path) -> None:
    target = aside / "tree"
    extract(container, path, target)
    inner = target / os.path.basename(path)
    if inner.is_dir() and not inner.is_symlink():
        os.rename(inner, aside / "work")
        (aside / "work").chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)


def extract(container: str, path: str, target: Path) -> None:
    """As the engine packs it. Nothing where the path is not there."""
    try:
        with errors("read from the image"):
            stream, _ = client().get_archive(container, path)
    except SandboxError as error:
        if isinstance(error.__cause__, docker.errors.NotFound):
            return
        raise
    target.mkdir()
    with tempfile.TemporaryFile() as packed:
        for piece in bounded(stream, path):
            packed.write(piece)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(target, filter=plain_only)


def bounded(stream: Iterator[bytes], path: str) -> Iterator[bytes]:
    total = 0
    for piece in stream:
        total += len(piece)
        if total > MAX_TREE_BYTES:
            raise SandboxError(f"sandbox: the image's {path} holds more than {MAX_TREE_BYTES >> 30} GiB.", retry=False)
        yield piece


def plain_only(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = os.geteuid()
    member.uname = member.gname = ""
    if member.isdir():
        member.mode |= 0o700
    return tarfile.tar_filter(member, path)
