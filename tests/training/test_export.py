"""Versions as Hugging Face directories: what is loaded from them is what was trained."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.training.tiny import SETTINGS, make_sample, save_tiny_model
from training.engine_weights import probe_ids, read_reference
from training.export import save_version
from training.trainer import Trainer

pytestmark = pytest.mark.slow


def trained(path, **changes):
    trainer = Trainer.load(path, settings=SETTINGS.model_copy(update=changes), seed=1)
    trainer.supervised_step([make_sample(1)], learning_rate=1e-2)
    return trainer


def logits_of(model):
    with torch.no_grad():
        return model(torch.arange(1, 20)[None]).logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_saved_version_computes_what_the_trainer_computes(tmp_path, tied, adapter):
    trainer = trained(save_tiny_model(tmp_path / "base", tied=tied), adapter=adapter)
    size = save_version(trainer, tmp_path / "1", source=str(tmp_path / "base"), provenance={}, precision="fp32")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "1", dtype=torch.float32)
    trainer.language_model.module.set_attn_implementation("sdpa")
    assert torch.allclose(logits_of(loaded), logits_of(trainer.language_model.module), atol=1e-5)
    assert size > 10_000


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_version_brings_along_what_an_engine_must_answer_to_the_probe(tmp_path, adapter):
    trainer = trained(save_tiny_model(tmp_path / "base"), adapter=adapter)
    save_version(trainer, tmp_path / "1", source=str(tmp_path / "base"), provenance={}, precision="fp32")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "1", dtype=torch.float32)
    ids = torch.tensor(probe_ids(loaded.config.vocab_size))
    with torch.no_grad():
        expected = loaded(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    assert read_reference(tmp_path / "1") == pytest.approx(expected.tolist(), abs=2e-5)


def test_the_output_matrix_is_written_though_it_is_tied_and_is_the_trained_one(tmp_path):
    trainer = trained(save_tiny_model(tmp_path / "base"), precision="bf16")
    save_version(trainer, tmp_path / "1", source=str(tmp_path / "base"), provenance={"run": "demo"})
    state = load_file(tmp_path / "1" / "model.safetensors")
    base = load_file(tmp_path / "base" / "model.safetensors")
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    assert not torch.equal(state["lm_head.weight"].float(), base["model.embed_tokens.weight"].bfloat16().float())
    assert state["lm_head.weight"].dtype == torch.bfloat16
    assert json.loads((tmp_path / "1" / "gyre.json").read_text())["run"] == "demo"
    assert json.loads((tmp_path / "1" / "config.json").read_text())["dtype"] == "bfloat16"
