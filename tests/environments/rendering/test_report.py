"""What the report says of renderers that are right, and of ones that are not; a tiny Qwen3 as a model of the catalog."""

import pytest

from environments.catalog import ModelError, add_model
from environments.rendering.report import build_report
from tests.environments.rendering.tokenizers_for_tests import CHATML, write_tokenizer

pytestmark = pytest.mark.django_db
REWRITES = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ 'hidden' }}{% else %}{{ m['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_tiny_qwen3(directory, template=CHATML):
    """A random Qwen3 of some thousand parameters, with a tokenizer of its own."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = write_tokenizer(directory, template=template)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def verdicts(model):
    return {check["key"]: check["verdict"] for check in model.settings["report"]["checks"]}


def test_a_tiny_qwen3_is_added_with_a_report_that_is_exact(tmp_path):
    model = add_model("tiny-qwen3", str(save_tiny_qwen3(tmp_path / "m")))
    assert (model.renderer, model.settings["model_type"], model.num_parameters > 1000) == ("chatml", "qwen3", True)
    assert set(verdicts(model).values()) == {"exact"}
    assert model.settings["report"]["exact"]


def test_a_template_that_rewrites_history_is_rendered_whole_and_the_report_says_what_that_costs(tmp_path):
    model = add_model("rewrites", str(save_tiny_qwen3(tmp_path / "m", REWRITES)))
    found = verdicts(model)
    assert model.renderer == "whole"
    assert (found["template"], found["bridge"]) == ("exact", "not")
    bridge = next(check for check in model.settings["report"]["checks"] if check["key"] == "bridge")
    assert "new branch" in bridge["remedy"]
    assert bridge["first"]


def test_the_renderer_can_be_named_and_what_it_cannot_do_is_refused(tmp_path):
    path = str(save_tiny_qwen3(tmp_path / "m"))
    assert add_model("a", path, "whole").renderer == "whole"
    with pytest.raises(ModelError, match="There is no renderer 'x'"):
        add_model("b", path, "x")
    rewriting = str(save_tiny_qwen3(tmp_path / "r", REWRITES))
    with pytest.raises(ModelError, match="not append-only"):
        add_model("c", rewriting, "chatml")


def test_a_model_without_a_chat_template_is_explained(tmp_path):
    path = save_tiny_qwen3(tmp_path / "m")
    (path / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="Add chat_template"):
        add_model("a", str(path))


def test_a_renderer_that_is_wrong_is_found_out(tmp_path):
    from environments.rendering import load_renderer

    model = add_model("a", str(save_tiny_qwen3(tmp_path / "m")))
    renderer = load_renderer(model)

    class Wrong:
        name = "wrong"
        stop_token_ids = renderer.stop_token_ids

        def __getattr__(self, name):
            return getattr(renderer, name)

        def render(self, messages, tools):
            return [[*ids, 5] for ids in renderer.render(messages, tools)]

        def opener(self, messages, tools):
            return [7]

    found = {check["key"]: check["verdict"] for check in build_report(Wrong(), tmp_path / "m")["checks"]}
    assert (found["template"], found["opener"], found["round_trip"]) == ("not", "not", "exact")


def test_the_page_adds_a_model_and_shows_its_report(tmp_path, client):
    from tests.gyre_web.factories import make_user

    path = save_tiny_qwen3(tmp_path / "m")
    client.force_login(make_user("op", "operator"))
    page = client.post("/models/add", {"name": "my model", "path": str(path), "renderer": ""})
    assert (page.status_code, "letters, digits" in page.content.decode()) == (422, True)
    answer = client.post("/models/add", {"name": "mine", "path": str(path), "renderer": ""})
    assert answer.status_code == 302
    page = client.get(answer["Location"]).content.decode()
    assert "exact in every check" in page
    assert "Whole conversations equal" in page
    body = {"name": "other", "path": "/nowhere"}
    wrong = client.post("/api/models", body, content_type="application/json")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "path")
