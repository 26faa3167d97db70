"""How much memory this process took, how to give it back, and the environment in which it stays small.

From:  training.trainer_process (reports, limits), the `trainer` command (environment).
Holds: never raises where the platform has no /proc or no glibc; it then says 0 or does nothing.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path


def peak_bytes() -> int:
    """Most resident memory this process ever had."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def release_free_memory() -> None:
    """Hand freed heap pages back to the system (glibc only)."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


def openmp_library() -> Path | None:
    """Intel's OpenMP beside the interpreter (package intel-openmp), which can sleep between parallel regions."""
    path = Path(sys.prefix) / "lib" / "libiomp5.so"
    return path if path.exists() else None


def trainer_environment(base: Mapping[str, str], *, cores: int) -> dict[str, str]:
    """Variables that must be set before the process starts.

    One malloc arena and no growth of its thresholds: freed tensors go back to the system or are used again, whatever
    their shapes. OpenMP threads sleep 1 ms after a parallel region: an engine on the same cores is not slowed by
    spinning.
    """
    environment = {
        **base,
        "OMP_NUM_THREADS": str(cores),
        "KMP_BLOCKTIME": "1",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(512 * 1024 * 1024),
        "MALLOC_MMAP_THRESHOLD_": str(64 * 1024 * 1024),
        "TOKENIZERS_PARALLELISM": "false",
    }
    library = openmp_library()
    if library and str(library) not in base.get("LD_PRELOAD", ""):
        environment["LD_PRELOAD"] = ":".join(filter(None, (str(library), base.get("LD_PRELOAD", ""))))
    environment.pop("MALLOC_CONF", None)
    return environment


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))
