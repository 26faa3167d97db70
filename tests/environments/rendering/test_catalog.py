"""Adding models."""

import json

import pytest
import torch
from safetensors.torch import save_file

from environments import catalog
from environments.models import Model
from environments.rendering import load_renderer
from tests.environments.rendering.tokenizers_for_tests import CHATML, write_tokenizer

pytestmark = pytest.mark.django_db


def write_model(directory, template=CHATML):
    write_tokenizer(directory, template)
    save_file({"a": torch.zeros(3, 4), "lm_head.weight": torch.zeros(5)}, directory / "model.safetensors")


def test_a_model_is_added_with_what_was_proven(tmp_path):
    write_model(tmp_path)
    model = catalog.add_model("tiny", str(tmp_path))
    assert (model.renderer, model.context_length, model.num_parameters) == ("chatml", 512, 17)
    assert catalog.add_model("tiny", str(tmp_path)).id == model.id
    stored = Model.objects.get(name="tiny")
    assert load_renderer(stored) is load_renderer(stored)
    assert load_renderer(stored).render([{"role": "user", "content": "hi"}], [])[0][-2] == 258 + 7


def test_an_unprovable_template_is_rendered_in_full(tmp_path):
    write_model(tmp_path, CHATML.replace("m['content']", "m['content'] | trim"))
    model = catalog.add_model("trims", str(tmp_path))
    assert model.renderer == "whole"
    assert model.settings["unproven"]
    assert load_renderer(model).extend([1], {}, [{"role": "user", "content": "a"}], []) is None


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named_with_its_remedy(tmp_path, missing):
    write_model(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(catalog.ModelError, match=missing.removeprefix("model")) as caught:
        catalog.add_model("tiny", str(tmp_path))
    assert caught.value.field == "path"


def test_a_path_that_is_not_there_and_a_model_of_another_kind_are_refused(tmp_path):
    with pytest.raises(catalog.ModelError, match="no directory"):
        catalog.add_model("none", "/no/such/place")
    write_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    with pytest.raises(catalog.ModelError, match="not a causal language model"):
        catalog.add_model("bert", str(tmp_path))


def test_a_conversion_that_fails_leaves_nothing(tmp_path):
    def convert():
        with catalog.finished_directory(tmp_path / "model") as unfinished:
            (unfinished / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        convert()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_built_in_model_speaks_its_template(tmp_path, settings):
    settings.DATA_DIR = tmp_path
    model = catalog.ensure_builtin_model()
    assert (model.renderer, model.context_length, model.num_parameters) == ("chatml", 8192, 134515008)
    assert catalog.ensure_builtin_model().id == model.id
    from safetensors import safe_open
    from transformers import AutoTokenizer

    with safe_open(f"{model.path}/model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("lm_head.weight"), file.get_tensor("model.embed_tokens.weight"))
    messages = [{"role": "user", "content": "  a 12 \n\n"}, {"role": "assistant", "content": "😀"}]
    ids = AutoTokenizer.from_pretrained(model.path).apply_chat_template(messages, tokenize=True, return_dict=False)
    assert [i for group in load_renderer(model).render(messages, []) for i in group] == ids
