"""The command line and environment of an engine process.

From:  training.engines, with a config section and where to listen.
To:    (command, environment).
Holds: keys travel in the environment, never in arguments. A listening engine is always behind EngineFront.
Never: starts anything.

Two kinds of machine. CPU: vLLM's CPU build, settings below measured on two cores (docs/log.md). GPU (`vllm`, chosen when
the device is cuda): same endpoints; written after vLLM's documentation and not yet run on a GPU.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings

from training.config import EngineSection
from training.engine_front import KEY_VARIABLE

OPENMP_NAMES = ("libiomp5.so",)


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Exactly one of socket and (host, port)."""

    key: str
    socket: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def base_url(self) -> str:
        return f"unix://{self.socket}" if self.socket else f"http://{self.host}:{self.port}"

    def arguments(self) -> list[str]:
        return ["--uds", str(self.socket)] if self.socket else ["--host", self.host, "--port", str(self.port)]


@dataclass(frozen=True, kw_only=True)
class Weights:
    name: str
    """What requests call the model."""
    path: Path
    config_path: Path
    context_length: int


def build_command(config: EngineSection, weights: Weights, listening: Listening) -> list[str]:
    if config.kind == "scripted":
        where = ["--socket", str(listening.socket)] if listening.socket else ["--port", str(listening.port)]
        return [sys.executable, "-m", "environments.scripted.engine", *where]
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *listening.arguments(),
        *("--middleware", "training.engine_front.EngineFront"),
        *("--model", str(weights.path), "--hf-config-path", str(weights.config_path)),
        *("--served-model-name", weights.name),
        *("--tokens-only", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
        *("--dtype", choose_dtype(config.dtype)),
        *("--max-model-len", str(weights.context_length)),
        *("--max-num-seqs", str(config.max_running)),
        *("--enable-prefix-caching", "--disable-uvicorn-access-log", "--generation-config", "vllm"),
        *device_arguments(config),
    ]


def device_arguments(config: EngineSection) -> list[str]:
    if config.device == "cuda":
        return ["--enable-sleep-mode", "--tensor-parallel-size", str(config.tensor_parallel)]
    return ["--enforce-eager", "--kv-cache-memory-bytes", str(int(config.kv_cache_gb * 2**30))]


def build_environment(
    config: EngineSection, listening: Listening, cores: Sequence[int] | None, base: Mapping[str, str], *, private: Path
) -> dict[str, str]:
    """cores: processor numbers that the engine may use; None: all that this process may. private: its own directory,
    where its processes meet; vLLM's sockets stay behind when it is killed, and go with the directory."""
    environment = {name: value for name, value in base.items() if not name.startswith(("VLLM_", "KMP_", "OMP_"))}
    environment |= {
        KEY_VARIABLE: listening.key,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(settings.BASE_DIR), base.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }
    if config.kind == "vllm":
        environment |= {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_RPC_BASE_PATH": str(private),
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            **(cpu_environment(config, cores) if config.device == "cpu" else {}),
        }
    return environment


def cpu_environment(config: EngineSection, cores: Sequence[int] | None) -> dict[str, str]:
    """One process for engine and worker (two would spin on each other's shared memory and take half a core), threads
    that sleep when they have nothing to do, and the libiomp5 that makes that cheap where it is installed."""
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(cores) if cores else len(os.sched_getaffinity(0))),
        "KMP_BLOCKTIME": "0",
    }
    openmp = find_openmp()
    return environment | ({"LD_PRELOAD": str(openmp)} if openmp else {})


def find_openmp() -> Path | None:
    """libiomp5.so of the `intel-openmp` wheel (a requirement of engine-cpu), or None."""
    libraries = Path(sysconfig.get_path("data")) / "lib"
    return next((libraries / name for name in OPENMP_NAMES if (libraries / name).is_file()), None)


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":")[1] for line in lines if line.startswith("flags")), "").split())


def choose_dtype(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & cpu_flags() else "float32"
