"""A trainer over several devices: the first process decides, the others do the same calls.

From:  training.trainer_process (`optimization.devices` > 1) opens the group; it starts the followers itself.
To:    functions marked `led`: called on the leader they run on every rank, with the same arguments.
Holds: followers know no rows and write no files; they end when the leader does, whatever ended it.
Never: decides what is trained.

    leader     load, policy_step, save_checkpoint ...   announces each call, then makes it
    followers  wait for a call, make it on their own shards, wait again

A step that fails alike on all ranks (a gradient that is not finite) leaves them together. One that fails on a single
rank ends the collectives after TIMEOUT_S; the leader's process ends, and its cell starts it again.
"""

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from training.parallel import Division, Ranks

if TYPE_CHECKING:
    from training.config import Optimization
    from training.trainer import Trainer

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 600
PR_SET_PDEATHSIG = 1
LED: dict[str, Callable[..., Any]] = {}
"""Functions that followers may be told to call."""


def open_group(devices: int, division: Division) -> Ranks | None:
    """Start the followers and meet them. None where one device trains alone."""
    if devices == 1:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(1, devices):
        environment = {**os.environ, "GYRE_RANK": str(rank), "GYRE_WORLD": str(devices), "GYRE_PORT": str(port)}
        subprocess.Popen(
            [sys.executable, "-m", "training.trainer_group"], env=environment, preexec_fn=end_with_parent,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
    join(0, devices, port)
    return Ranks.here(division)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def join(rank: int, world: int, port: int) -> None:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def announce(ranks: Ranks | None, name: str, *args: Any, **kwargs: Any) -> None:
    """Tell the followers what comes next. Nothing to do on a follower or where there are none."""
    if ranks is not None and ranks.rank == 0:
        dist.broadcast_object_list([(name, args, kwargs)], src=0)


def led(function: "Callable[Concatenate[Trainer, P], R]") -> "Callable[Concatenate[Trainer, P], R]":
    """Called with a leader's trainer, every rank makes the call; calls inside it are not announced again."""
    name = function.__qualname__
    LED[name] = function

    @functools.wraps(function)
    def call(trainer: "Trainer", /, *args: P.args, **kwargs: P.kwargs) -> R:
        if trainer.ranks is None or trainer.is_led:
            return function(trainer, *args, **kwargs)
        announce(trainer.ranks, name, *args, **kwargs)
        trainer.is_led = True
        try:
            return function(trainer, *args, **kwargs)
        finally:
            trainer.is_led = False

    return call


def follow() -> None:
    """Make the leader's calls until it is gone."""
    from training.config import Optimization
    from training.trainer import Trainer, TrainerError

    trainer: Trainer | None = None
    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0)
        name, args, kwargs = message[0]
        if name == "stop":
            leave()
            return
        if name == "load":
            path, settings, seed, division = args
            trainer = None  # the old one's memory first
            trainer = Trainer.load(
                path, settings=Optimization.model_validate_json(settings), seed=seed, ranks=Ranks.here(division)
            )
            trainer.is_led = True
        elif name == "reference" and trainer is not None:
            trainer.reference_path = args[0]
        else:
            with contextlib.suppress(TrainerError):  # the leader has it too, and reports it
                LED[name](trainer, *args, **kwargs)


def close_group() -> None:
    """Send the followers home."""
    dist.broadcast_object_list([("stop", (), {})], src=0)
    leave()


def leave() -> None:
    """All together: a rank that is gone while another still closes its connections makes gloo abort that one."""
    dist.barrier()
    dist.destroy_process_group()


def announce_load(ranks: Ranks | None, path: Path | str, settings: "Optimization", seed: int) -> None:
    if ranks is not None:
        announce(ranks, "load", path, settings.model_dump_json(), seed, ranks.division)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")
    import django

    django.setup()
    import training.checkpoints
    import training.export  # noqa: F401  (both register what followers may be told to do)

    join(int(os.environ["GYRE_RANK"]), int(os.environ["GYRE_WORLD"]), int(os.environ["GYRE_PORT"]))
    follow()


if __name__ == "__main__":
    # Under its real name: the functions marked `led` register there.
    from training.trainer_group import main as real_main

    real_main()
