"""The worked example of docs/explanation/tree-to-samples.md, value by value, and the recipes of the guide."""

import re
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from tests.training.trees import node
from training.config import RunConfig
from training.config_text import toml_to_data
from training.layout import lay_out
from training.objectives import build_aggregation
from training.packing import build_micro_batches, token_numbers
from training.selection import select_samples

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "explanation/tree-to-samples.md").read_text()
RECIPES = sorted((DOCS / "guides/recipes").glob("*.toml"))

NODES = [
    node(0, None, [1, 2, 3, 4]),
    node(1, 0, [50, 51, 10, 11, 12], sampled=True, opener=2),
    node(2, 1, [20, 21]),
    node(3, 2, [50, 51, 13, 14], sampled=True, opener=2),
    node(4, 2, [50, 51, 15], sampled=True, opener=2),
    node(5, None, [30, 31], role="sub-agent"),
    node(6, 5, [50, 51, 16, 17, 18], sampled=True, opener=2, role="sub-agent"),
]


def samples():
    return select_samples(NODES, rollout_id=UUID(int=7), max_samples=5).samples


def numbers(cell):
    return [int(part) for part in cell.split()]


def test_the_table_of_samples_is_what_selection_gives():
    rows = re.findall(r"^\| [abc] \| ([\d ]+) \| ([\d ]+) \| ([\d ]+) \|$", PAGE, re.MULTILINE)
    found = [
        ([piece.node for piece in each.pieces], each.ids.tolist(), each.ids[each.loss_mask].tolist())
        for each in samples()
    ]
    assert found == [tuple(numbers(cell) for cell in row) for row in rows]


def test_the_row_is_what_packing_lays():
    layout = lay_out([each.ids for each in samples()], share=True)
    lines = {
        name: numbers(text.replace("|", " "))
        for name, text in re.findall(r"^(place|id|position) +(.*)$", PAGE, re.MULTILINE)
    }
    assert layout.ids_T.tolist() == lines["id"]
    assert layout.positions_T.tolist() == lines["position"]
    assert lines["place"] == list(range(layout.num_tokens))
    assert sum(each.num_tokens for each in samples()) == 36
    (batch,) = build_micro_batches(list(samples()), budget_tokens=64)
    places = dict(zip(batch.targets_M.tolist(), batch.predict_M.tolist(), strict=True))
    assert places[13] == places[15] == 12


def test_each_of_the_nine_tokens_weighs_a_ninth():
    sequence = token_numbers(samples())
    aggregation = build_aggregation(
        "two-level", sequence_T=sequence, rollout_T=sequence * 0, num_rollouts=1, constant_length=1
    )
    assert np.allclose(aggregation.weights_T / aggregation.denominator, [1 / 9] * 9)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_a_valid_config(path):
    config = RunConfig.model_validate(toml_to_data(path.read_text()))
    assert config.sampling.max_tokens <= config.budgets.max_sampled_tokens
    assert config.engine.max_context_tokens >= config.budgets.max_context_tokens


def test_the_recipes_set_what_their_papers_set():
    configs = {path.stem: RunConfig.model_validate(toml_to_data(path.read_text())).objective for path in RECIPES}
    told = {name: (each.advantage, each.policy_loss, each.aggregation) for name, each in configs.items()}
    assert told == {
        "cispo": ("grpo", "cispo", "token-mean"),
        "dapo": ("grpo", "dapo", "token-mean"),
        "dr-grpo": ("dr_grpo", "ppo_clip", "constant-length"),
        "gspo": ("grpo", "gspo", "sequence-mean"),
    }
