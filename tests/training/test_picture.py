"""The picture of a group shows each distinct token once, where it forks and what it is trained with."""

import xml.etree.ElementTree as ET
from uuid import UUID

import numpy as np
import pytest

from tests.training.trees import random_rollouts, two_turns
from training.layout import distinct_tokens
from training.picture import LABEL, WIDTH, Drawn, draw
from training.selection import select_samples

SVG = "{http://www.w3.org/2000/svg}"


def drawn(rollouts):
    return [
        Drawn(sample=sample, advantages=advantages, label=f"rollout {number} <&>")
        for number, rollout in enumerate(rollouts)
        for sample, advantages in zip(rollout.samples, rollout.advantages, strict=True)
    ]


def widths(root, kind, scale):
    return sum(float(bar.get("width")) + 0.4 for bar in root.iter(f"{SVG}rect") if bar.get("class") == kind) / scale


@pytest.mark.parametrize("seed", range(5))
def test_bars_are_as_long_as_what_is_computed_and_coloured_by_advantage(seed):
    samples = drawn(random_rollouts(seed, vocabulary=64))
    root = ET.fromstring(draw(samples))
    scale = (WIDTH - LABEL) / max(each.sample.num_tokens for each in samples)
    trained = {"gain": 0, "loss": 0}
    for each in samples:
        trained["gain"] += int((each.advantages > 0).sum())
        trained["loss"] += int((each.advantages < 0).sum())
    for kind, count in trained.items():
        assert widths(root, kind, scale) == pytest.approx(count, abs=1.5)
    distinct = distinct_tokens([each.sample.ids for each in samples])
    everything = sum(widths(root, kind, scale) for kind in ("context", "gain", "loss", "even"))
    assert everything == pytest.approx(distinct, abs=2.5)
    assert f"{distinct} tokens computed" in root.get("aria-label")
    labels = " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert all(each.label in labels for each in samples)


def test_a_trained_token_without_advantage_is_neither_gain_nor_loss():
    (sample,) = select_samples(two_turns(), rollout_id=UUID(int=1), max_samples=5).samples
    root = ET.fromstring(draw([Drawn(sample=sample, advantages=np.zeros(5, dtype=np.float32), label="")]))
    assert {bar.get("class") for bar in root.iter(f"{SVG}rect")} == {"context", "even"}


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="no sample"):
        draw([])
