"""The bubblewrap command line: what a process sandbox sees of the host, and as whom it runs.

From:  process.py.
To:    argv for bwrap; its last words start supervisor.py as process 1.
Holds: an allow-list. Nothing of the host is visible but /usr, the loader's and certificates' files of /etc, the Python
       that runs Gyre, the mounts a launch names, and the sandbox's own directories.
Never: shows a socket of the database or of Valkey, a home, or another sandbox.

Two ways, chosen by who we are:
- root (with all user ids): every harness gets a host user id of its own, without any capability; process 1 stays root
  with the few capabilities it needs to watch and kill. No user namespace is needed, and process limits count per id.
- an ordinary user: a user namespace in which the harness is 1000 and no further namespace can be made.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from uuid import UUID

PROGRAMS = Path(__file__).resolve().parent
PROGRAM_FILES = ("supervisor.py", "supervisor_start.py", "supervisor_watch.py", "relay.py")
"""Of PROGRAMS, what is at /gyre/bin."""
PYTHON = "/gyre/venv/bin/python"
"""Inside: the Python of the environment that runs Gyre, with its packages."""

FIRST_UID = 1_900_000_000
NUM_UIDS = 200_000_000
"""Above every range that containers and subordinate ids use, below 2^31."""
RELAY_UID = FIRST_UID - 1

CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE")
WRITABLE = {"work": "/work", "home": "/home/agent", "tmp": "/tmp", "logs": "/logs", "run": "/gyre/run"}
RESERVED = ("/work", "/home/agent", "/tmp", "/logs", "/gyre", "/proc", "/dev", "/etc", "/tests")
FORBIDDEN_TARGETS = ("/work", "/home", "/tmp", "/logs", "/proc", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib")
ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki",
    "protocols",
    "services",
    "ssl",
]
KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs")
SHM_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Identity:
    """uid: the host user id of the harness; None: ours, in a user namespace."""

    uid: int | None


def choose_identity(sandbox: UUID) -> Identity:
    return Identity(uid=FIRST_UID + sandbox.int % NUM_UIDS if owns_all_uids() else None)


def owns_all_uids() -> bool:
    if os.geteuid() != 0:
        return False
    fields = Path("/proc/self/uid_map").read_text().split()
    return [int(field) for field in fields[:3]] == [0, 0, 4294967295] and has_capabilities()


def has_capabilities() -> bool:
    """CAP_CHOWN 0, DAC_READ_SEARCH 2, KILL 5, SETGID 6, SETUID 7, SYS_PTRACE 19, SYS_ADMIN 21."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return all(effective >> bit & 1 for bit in (0, 2, 5, 6, 7, 19, 21))
    return False


def namespaces(identity: Identity) -> list[str]:
    words = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if identity.uid is None:
        return [*words, "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    words += ["--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        words += ["--cap-add", capability]
    return words


def system_mounts() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ROOT_LINKS:
        path = f"/{name}"
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for name in ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for (
        name
    ) in KERNEL_SETTINGS:  # root in a user namespace owns them on the host: core_pattern alone would be a way out
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    words += ["--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]
    return words


def python_mounts() -> list[str]:
    """The interpreter where it was installed, and its environment at /gyre/venv (and where it is, unless in our way)."""
    prefix = os.path.realpath(sys.prefix)
    words = ["--ro-bind", prefix, "/gyre/venv"]
    for path in dict.fromkeys((*interpreter_homes(), prefix)):
        if not is_under(path, ("/usr", *RESERVED)):
            words += ["--ro-bind", path, path]
    return words


def interpreter_homes() -> list[str]:
    """Installations of Python that the environment's `python` passes through, link by link (uv and pyenv have several).

    A directory that merely has a link to python in its bin, such as a home, is not one.
    """
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    homes, program = [os.path.realpath(sys.base_prefix)], sys.executable
    for _ in range(20):
        if not os.path.islink(program):
            break
        program = os.path.normpath(os.path.join(os.path.dirname(program), os.readlink(program)))
        home = os.path.dirname(os.path.dirname(program))
        if os.path.isfile(os.path.join(home, library, "os.py")):
            homes.append(home)
    return homes


def check_python() -> str | None:
    base = os.path.realpath(sys.base_prefix)
    if is_under(base, RESERVED):
        return f"sandbox: Python is installed in {base}, a path that sandboxes use; use a Python from another place."
    return None


def supervisor_python() -> str:
    return os.path.realpath(sys.executable)


def is_under(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)


def own_mounts(directory: Path) -> list[str]:
    words: list[str] = []
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        words += ["--ro-bind", str(directory / "etc" / name), f"/etc/{name}"]
    for name, target in WRITABLE.items():
        words += ["--bind", str(directory / name), target]
    for name in PROGRAM_FILES:
        words += ["--ro-bind", str(PROGRAMS / name), f"/gyre/bin/{name}"]
    return words


def parent_directories(binds: Sequence[str]) -> list[str]:
    """Directories above mount points, made open to all: by itself bwrap may make them its own user's alone."""
    parents = {str(parent) for target in binds[2::3] for parent in PurePosixPath(target).parents}
    words: list[str] = []
    for path in sorted(parents - {"/"} | {"/etc"}):
        if not is_under(path, ("/usr",)):
            words += ["--perms", "0755", "--dir", path]
    return words


def etc_files(identity: Identity) -> Mapping[str, str]:
    uid = 1000 if identity.uid is None else identity.uid
    return {
        "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{uid}:{uid}:agent:/home/agent:/bin/sh\n",
        "group": f"root:x:0:\nagent:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def build_command(
    *,
    bwrap: str,
    identity: Identity,
    directory: Path,
    mounts: Sequence[tuple[Path, str]],
    gateway: Path | None,
    info_fd: int,
    filter_fd: int | None,
    program: Sequence[str],
) -> list[str]:
    """argv of the whole sandbox. mounts: (host path, path inside), read-only, in order. filter_fd: see syscalls.py."""
    words = [bwrap, *namespaces(identity), "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    binds = [*python_mounts(), *own_mounts(directory)]
    if gateway is not None:
        binds += ["--ro-bind", str(gateway), "/gyre/gateway"]
    for source, target in mounts:
        binds += ["--ro-bind", str(source), target]
    words += [*parent_directories(binds), *system_mounts(), *binds]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--info-fd", str(info_fd)]
    words += [] if filter_fd is None else ["--seccomp", str(filter_fd)]
    return [*words, "--", supervisor_python(), "-I", "-S", "/gyre/bin/supervisor.py", *program]
