"""fit: counts by hand, and the command."""

import json

import pytest
from django.core.management import CommandError, call_command

from gyre_web.bench.train import Plan, TreeSizes, save_model
from training.fit import Setup, Shape, fit

SHAPE = Shape(
    parameters=1000, trainable=1000, layers=2, layer=300, hidden=10, vocabulary=40, kv_width=4, intermediate=30,
    saved_layer=500.0, saved_outside=100.0,
)  # fmt: skip


def test_the_parts_by_hand():
    found = fit(SHAPE, Setup(context=100, tokens=100, precision="fp32", activations="keep", running=3))
    assert (found.weights, found.gradients, found.optimizer) == (4000, 4000, 8000)
    assert found.activations == 100 * (2 * 500 + 100 + 3 * 30 * 4)
    assert found.engine_cache == 2 * 2 * 4 * 2 * 100 * 3


def test_devices_share_weights_and_rows_and_each_gathers_a_layer():
    one = fit(SHAPE, Setup(context=100, tokens=100, precision="fp32", activations="keep"))
    two = fit(SHAPE, Setup(context=100, tokens=100, precision="fp32", activations="keep", devices=2))
    assert two.optimizer == one.optimizer / 2
    assert two.gathered == (2 * 300 + 400) * 4
    assert two.activations == 50 * (2 * 500 + 100 + 360) + 2 * (2 * 4 * 4 * 50)


def test_checkpointing_keeps_one_layer_and_the_inputs_of_the_others():
    found = fit(SHAPE, Setup(context=100, tokens=100, precision="fp32", activations="checkpoint"))
    assert found.activations == 100 * (500 + 100 + 2 * 10 * 4 + 360)


PLAN = Plan(
    trees=TreeSizes(rollouts=1, prompt=1, turns=1), hidden=384, layers=6, vocabulary=4096, rounds=1, precisions=(),
    trl_batches=(), lengths=(),
)  # fmt: skip


def test_the_command_prints_one_json_line_and_refuses_a_directory_without_a_model(tmp_path, capsys):
    model = save_model(tmp_path / "m", Plan(**{**PLAN.__dict__, "hidden": 64, "layers": 2, "vocabulary": 64}))
    call_command("fit", "--model", str(model), "--context", "1000", "--lora-rank", "8", "--json")
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert 0 < found["trainable"] < found["parameters"]
    assert found["cards"]["H200"]["together"] is True
    with pytest.raises(CommandError, match="config"):
        call_command("fit", "--model", str(tmp_path), "--context", "1000")
