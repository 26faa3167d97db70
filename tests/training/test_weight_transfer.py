"""Weights from device to device: the order of the calls, and what is sent. The data path itself needs two GPUs."""

import pytest
import torch
from safetensors.torch import load_file

from tests.training.tiny import SETTINGS, save_tiny_model
from training import weight_transfer
from training.export import save_version
from training.trainer import Trainer
from training.weight_transfer import DeviceTransfer, Meeting, TrainerWeights, choose_backend

MEETING = Meeting(address="127.0.0.1", port=1, num_workers=1)


class RecordingClient:
    """Takes the place of an engine's door: notes each call in order."""

    def __init__(self):
        self.calls = []

    def pause(self, **given):
        self.calls.append(("pause", given))

    def resume(self):
        self.calls.append(("resume", {}))

    def post(self, path, json=None, timeout_s=60.0):
        self.calls.append((path, json))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    path = save_tiny_model(tmp_path_factory.mktemp("model"))
    made = Trainer.load(path, settings=SETTINGS.model_copy(update={"adapter": "lora", "lora_rank": 4}), seed=1)
    made.source = str(path)
    return made


def test_what_is_sent_is_what_a_versions_file_holds(trainer, tmp_path):
    save_version(trainer, tmp_path / "v", source=trainer.source, provenance={}, precision="fp32")
    source = TrainerWeights(trainer, torch.float32, lambda *meta: meta)
    sent = dict(source)
    expected = load_file(tmp_path / "v/model.safetensors")
    assert set(sent) == set(expected)
    assert "lm_head.weight" in sent
    assert all(torch.equal(sent[name], expected[name]) for name in expected)
    assert source.metadata() == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]


@pytest.mark.slow
def test_vllms_own_trainer_side_drives_our_client_in_order(trainer, monkeypatch):
    """All of vLLM's sender but the broadcast, which needs a GPU; its check of names, types and shapes runs."""
    nccl = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    base = pytest.importorskip("vllm.distributed.weight_transfer.base")

    def without_group(trainer, calls, backend, meeting, dtype):
        engine = nccl.NCCLTrainerWeightTransferEngine(
            client=calls, source=TrainerWeights(trainer, dtype, base.ParamMeta)
        )
        engine._broadcast = lambda source, meta: list(engine._checked_iter(source, meta))
        return engine

    monkeypatch.setattr(weight_transfer, "open_sender", without_group)
    client = RecordingClient()
    transfer = DeviceTransfer.open(trainer, client, backend="nccl", meeting=MEETING, dtype=torch.bfloat16)
    transfer.publish(7)
    names = [name for name, _ in client.calls]
    assert names == ["pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "resume"]
    assert client.calls[0][1] == {"keep_cache": False, "lease_s": weight_transfer.PAUSE_LEASE_S, "version": 7}
    assert set(client.calls[2][1]["update_info"]["dtype_names"]) == {"bfloat16"}
    assert client.calls[3][1] == {"weight_version": "7"}


def test_a_failed_transfer_does_not_resume_the_engine(trainer, monkeypatch):
    class Broken:
        def send_weights(self):
            raise RuntimeError("the group is gone")

    monkeypatch.setattr(weight_transfer, "open_sender", lambda *given: Broken())
    client = RecordingClient()
    transfer = DeviceTransfer.open(trainer, client, backend="nccl", meeting=MEETING, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="gone"):
        transfer.publish(1)
    assert [name for name, _ in client.calls] == ["pause"]


def test_one_device_for_both_takes_ipc_and_two_take_nccl():
    assert choose_backend(torch.device("cuda", 0), {0}) == "ipc"
    assert choose_backend(torch.device("cuda", 0), {1, 2}) == "nccl"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="NOT CHECKED HERE: tree attention on CUDA needs a GPU")
def test_flex_attention_on_cuda_equals_the_cpu_path():
    from tests.training.test_packing import TREE
    from training.attention import tree_attention
    from training.packing import build_micro_batches

    (batch,) = build_micro_batches(TREE, budget_tokens=512)
    torch.manual_seed(0)
    made = [torch.randn(1, heads, len(batch.ids_T), 64) for heads in (4, 2, 2)]
    results = []
    for device in ("cpu", "cuda"):
        inputs = [each.to(device).requires_grad_() for each in made]
        output, _ = tree_attention(None, *inputs, None, rows=batch.rows)
        output = output[:, : batch.num_tokens]
        output.square().sum().backward()
        results.append([output.detach().cpu(), *(each.grad.cpu() for each in inputs)])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=2e-3)
