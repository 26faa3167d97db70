"""Every number is defined, stored, and goes out."""

import re
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.training.attempts import make_attempt, request_step
from tests.training.test_trainer_process import warm
from training.metrics import DEFINITIONS, define, histogram, save_metrics
from training.models import Metric
from training.tensorboard import directory_of, open_writer


def test_every_definition_says_what_it_means_and_how_it_is_computed():
    for key, known in DEFINITIONS.items():
        assert known.label, key
        assert known.meaning.endswith("."), key
        assert known.how, key


def test_the_histogram_counts_every_reward_once():
    found = histogram([0.0, 0.05, 0.1, 0.99, 1.0, -2.0, 7.0])
    assert sum(found.values()) == 7
    assert (found["reward_hist/0.0"], found["reward_hist/0.1"], found["reward_hist/0.9"]) == (3, 1, 3)


@pytest.mark.django_db
def test_whatever_a_run_stores_is_defined_and_holds_all_that_is_promised(tmp_path, settings):
    settings.DATA_DIR = tmp_path / "data"
    attempt = make_attempt(tmp_path, objective={"kl_coefficient": 0.1})
    loop = warm(attempt)
    request_step(attempt, 1, rewards=((1, 0, None), (1, 1, 0)))
    save_metrics(attempt, kind="policy", step=1, values={"generation_s": 3.0})
    loop.turn()
    stored = set(Metric.objects.filter(attempt=attempt).values_list("key", flat=True))
    assert {key for key in stored if define(key).meaning == "Not described."} == set()
    promised = {
        "reward_mean", "reward_std", "reward_hist/0.9", "reward_mean/sort", "reward_mean/taskset:set",
        "reward_mean/harness:h", "advantage_mean", "advantage_abs", "loss", "entropy", "kl", "clip_fraction",
        "ratio_mean", "ratio_max", "mismatch_mean", "mismatch_max", "mismatch_kl", "grad_norm", "learning_rate",
        "length_mean", "branches_mean", "no_signal_fraction", "staleness_mean", "staleness_max", "excluded",
        "excluded/never scored", "train_tokens_per_s", "generated_tokens_per_s", "train_s", "save_s", "load_s",
        "peak_memory_bytes", "delivered_rollouts", "delivered_tokens",
    }  # fmt: skip
    assert promised - stored == set()
    assert Metric.objects.get(attempt=attempt, key="delivered_rollouts").value == pytest.approx(5 / 6)


@pytest.mark.django_db(transaction=True)
def test_numbers_are_tensorboard_events_where_a_directory_is_configured(tmp_path, settings):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings.TENSORBOARD_DIR = str(tmp_path / "boards")
    attempt = make_attempt(tmp_path, name="my run: 1/2")
    save_metrics(attempt, kind="policy", step=3, values={"loss": 0.25})
    save_metrics(attempt, kind="evaluation", step=3, values={"heldout/rate": 0.5})
    open_writer(attempt.pk, str(directory_of(attempt))).close()
    open_writer.cache_clear()
    assert directory_of(attempt) == tmp_path / "boards" / "my-run-1-2" / "1"
    board = EventAccumulator(str(directory_of(attempt)))
    board.Reload()
    assert set(board.Tags()["scalars"]) == {"policy/loss", "evaluation/heldout/rate"}
    assert [(event.step, event.value) for event in board.Scalars("policy/loss")] == [(3, 0.25)]


def test_the_reference_is_what_the_code_says(tmp_path):
    path = Path("docs/reference/metrics.md")
    written = path.read_text()
    call_command("metrics_reference", output=str(tmp_path / "metrics.md"))
    assert (tmp_path / "metrics.md").read_text() == written, "run `manage.py metrics_reference`"
    assert len(re.findall(r"^\| `", written, re.MULTILINE)) == len(DEFINITIONS)
