"""Hand weights from the trainer's device to an engine's, without files: NCCL, or IPC where both share one device.

From:  a trainer that holds a finished step; an engine on CUDA that was started with `--weight-transfer-config`.
To:    vLLM's /init_weight_transfer_engine once, then per version /start_weight_update, /update_weights and
       /finish_weight_update, between a pause with a lease and a resume (training.engine_client).
Holds: the engine gets what a version's file would hold (training.export): merged adapters, `lm_head.weight` always;
       its version is set before it goes on; a trainer that dies in between leaves a lease that resumes the engine.
Never: replaces the file of a version: people, restarts and other engines read that.

The data path is vLLM's own trainer side (`vllm.distributed.weight_transfer`), whose control calls go through our client.
Not run on a GPU yet: tests hold the order of the calls and the names, shapes and types of what is sent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from training.engine_client import EngineClient, EngineError
from training.export import hugging_face_state
from training.trainer import Trainer

PAUSE_LEASE_S = 120.0
UPDATE_S = 600.0

Backend = Literal["nccl", "ipc"]


class Sender(Protocol):
    """vLLM's trainer side, once its group is open."""

    def send_weights(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where trainer and engine find each other. num_workers: engine processes (tensor times pipeline parallel)."""

    address: str
    port: int
    num_workers: int


def choose_backend(trainer_device: torch.device, engine_devices: set[int]) -> Backend:
    """NCCL refuses two ranks on one device; there the handles of the tensors themselves are handed over."""
    return "ipc" if trainer_device.index in engine_devices else "nccl"


def engine_arguments(backend: Backend) -> list[str]:
    """What an engine must be started with."""
    return ["--weight-transfer-config", f'{{"backend": "{backend}"}}']


class ControlCalls:
    """vLLM's four control calls, over our client: its key, its errors, its version header."""

    def __init__(self, client: EngineClient, version: Callable[[], int]) -> None:
        self._client = client
        self._version = version

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._client.post("/init_weight_transfer_engine", {"init_info": init_info}, timeout_s=UPDATE_S)

    def start_weight_update(self) -> None:
        self._client.post("/start_weight_update", timeout_s=UPDATE_S)

    def update_weights(self, update_info: Any) -> None:
        self._client.post("/update_weights", {"update_info": update_info}, timeout_s=UPDATE_S)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        version = str(self._version()) if weight_version is None else weight_version
        self._client.post("/finish_weight_update", {"weight_version": version}, timeout_s=UPDATE_S)


class TrainerWeights:
    """vLLM's WeightSource over a trainer: the tensors of a version's file, on the device, made anew for each pass.

    Sharded weights are gathered by every rank while it iterates; all ranks must iterate together.
    """

    def __init__(
        self, trainer: Trainer, dtype: torch.dtype, make_meta: Callable[[str, Any, tuple[int, ...]], Any]
    ) -> None:
        self._trainer = trainer
        self._dtype = dtype
        self._make_meta = make_meta
        self._meta: list[Any] | None = None

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each; they stay the same from version to version."""
        if self._meta is None:
            self._meta = [self._make_meta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self]
        return self._meta

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        device = self._trainer.language_model.device
        yield from hugging_face_state(self._trainer, self._dtype, device=device).items()

    def held_names(self) -> None:
        return None


@dataclass
class DeviceTransfer:
    """One engine's direct line. `open` makes it; `publish` may be called for every version after."""

    client: EngineClient
    sender: Sender
    _version: list[int]

    @classmethod
    def open(
        cls, trainer: Trainer, client: EngineClient, *, backend: Backend, meeting: Meeting, dtype: torch.dtype
    ) -> "DeviceTransfer":
        """Both sides meet; the engine must be up. Raises EngineError where vLLM's GPU build is not installed."""
        version = [0]
        calls = ControlCalls(client, lambda: version[0])
        return cls(client=client, sender=open_sender(trainer, calls, backend, meeting, dtype), _version=version)

    def publish(self, version: int, *, cache_policy: str = "recompute") -> None:
        """Requests stay open and go on with the new weights; on an error the engine stays paused until its lease
        ends, and must be given the version's file or be ended."""
        self._version[0] = version
        self.client.pause(keep_cache=cache_policy == "keep", lease_s=PAUSE_LEASE_S, version=version)
        self.sender.send_weights()
        self.client.resume()


def open_sender(
    trainer: Trainer, calls: ControlCalls, backend: Backend, meeting: Meeting, dtype: torch.dtype
) -> Sender:
    """vLLM's trainer side of the backend."""
    try:
        from vllm.distributed.weight_transfer.base import ParamMeta
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
    except ImportError as error:
        raise EngineError(f"weights can only be handed over by the `vllm` distribution for GPUs: {error}") from error
    source: Any = TrainerWeights(trainer, dtype, ParamMeta)
    rank = trainer.ranks.rank if trainer.ranks else 0
    if backend == "ipc":
        info: Any = IPCTrainerInitInfo(rank=rank)
        opened: Any = IPCTrainerWeightTransferEngine.trainer_init(info, client=calls, source=source)
        return opened
    info = NCCLTrainerInitInfo(
        master_address=meeting.address, master_port=meeting.port, world_size=1 + meeting.num_workers, rank=rank
    )
    return NCCLTrainerWeightTransferEngine.trainer_init(info, client=calls, source=source)
