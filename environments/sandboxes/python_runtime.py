"""Our Python inside a container: what starts the supervisor there, in images that have none, whatever their C library.

From:  environments.harnesses.runtimes (a Python with its own loader), the environment that runs Gyre.
To:    mounts at /gyre/python, and at /gyre/venv with the environment's packages, as a process sandbox has it.
Never: changes what the agent's own commands find.
"""

import contextlib
import sys
from pathlib import Path

from django.conf import settings

from environments.harnesses import HarnessMissing, runtimes
from environments.sandboxes.bubblewrap import PYTHON
from environments.sandboxes.protocol import Mount, SandboxError

VENV = "/gyre/venv"


def mounts() -> list[Mount]:
    """All that a container needs to see of it. The first time on a machine it is made, which takes a while."""
    try:
        python = runtimes.build_python()
    except HarnessMissing as error:
        raise SandboxError(f"sandbox: {error}", retry=False) from error
    return [
        Mount(source=python, target=runtimes.PYTHON_DIRECTORY),
        Mount(source=environment_directory(), target=VENV),
        Mount(source=Path(sys.prefix).resolve() / "lib", target=f"{VENV}/lib"),
    ]


def environment_directory() -> Path:
    """What stands for the environment's own directory: `python` is the runtime, `lib` is mounted over."""
    directory = Path(settings.DATA_DIR) / "python-environment"
    program = directory / PYTHON.removeprefix(f"{VENV}/")
    if not program.is_symlink():
        program.parent.mkdir(parents=True, exist_ok=True)
        (directory / "lib").mkdir(exist_ok=True)
        for path in (directory, program.parent, directory / "lib"):
            path.chmod(0o755)
        with contextlib.suppress(FileExistsError):  # another worker was faster
            program.symlink_to(runtimes.PYTHON)
    return directory


COMMAND = (runtimes.PYTHON,)
