"""Supervised and preference attempts through the trainer process: to version 0, interrupted, paused, refused."""

import pytest
import torch
from safetensors.torch import load_file

from tests.training.attempts import make_attempt, make_rollout
from tests.training.test_trainer_process import Killed, kill_at, last_weights, loop_of, same
from training import datasets
from training.models import Attempt, Dataset, Metric, OptimizerStep, Version

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


@pytest.fixture(autouse=True)
def data_directory(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"


def supervised(tmp_path, *, num=8, name="s", **changes):
    attempt = make_attempt(
        tmp_path, name=name,
        supervised={"dataset": name, "learning_rate": 1e-2, "batch_size": 2, **changes},
    )  # fmt: skip
    attempt.config["kind"] = "supervised"
    attempt.save()
    rollouts = [make_rollout(attempt, 7, task=f"{name}{n}", demonstration=n % 2 == 0) for n in range(num)]
    datasets.make_rollout_dataset(name=name, rollout_ids=[each.pk for each in rollouts], query={})
    return attempt


def preference(tmp_path, *, name="p"):
    section = {"dataset": name, "learning_rate": 1e-2, "batch_size": 2, "epochs": 3}
    attempt = make_attempt(tmp_path, name=name, preference=section)
    attempt.config["kind"] = "preference"
    attempt.save()
    good = [make_rollout(attempt, 11, reward=1.0) for _ in range(4)]
    bad = [make_rollout(attempt, 23, reward=0.0) for _ in range(4)]
    pairs = [(a.pk, b.pk) for a, b in zip(good, bad, strict=True)]
    datasets.make_pair_dataset(name=name, pairs=pairs, query={})
    return attempt


def values(attempt, kind, key):
    rows = Metric.objects.filter(attempt=attempt, kind=kind, key=key).order_by("step")
    return list(rows.values_list("value", flat=True))


def test_a_supervised_attempt_imitates_its_data_set_demonstrations_among_it_and_writes_version_0(tmp_path):
    attempt = supervised(tmp_path)
    assert loop_of(attempt).turn()
    losses = values(attempt, "supervised", "loss")
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert Version.objects.get(attempt=attempt).number == 0


def test_a_preference_attempt_learns_which_side_people_chose(tmp_path):
    attempt = preference(tmp_path)
    assert loop_of(attempt).turn()
    losses, right = values(attempt, "preference", "loss"), values(attempt, "preference", "pair_accuracy")
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0]
    assert right[-1] == 1.0


@pytest.mark.parametrize("make", [supervised, preference])
def test_killed_and_resumed_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, monkeypatch, make):
    monkeypatch.setattr("training.trainer_process.CHECKPOINT_STEPS", 2)
    whole = make(tmp_path / "a", name="one")
    loop_of(whole).turn()
    killed = make(tmp_path / "a", name="two")
    copied = Dataset.objects.get(name="one")
    Dataset.objects.filter(name="two").update(items=copied.items)
    with monkeypatch.context() as patch:
        kill_at(patch, "save_checkpoint", before=False)
        with pytest.raises(Killed):
            loop_of(killed).turn()
    assert loop_of(killed).turn()
    assert same(last_weights(whole), last_weights(killed))


def test_pause_waits_between_two_steps_and_resume_goes_on_from_there(tmp_path, monkeypatch):
    attempt = supervised(tmp_path)
    real = type(loop_of(attempt))._ready_trainer
    ring_calls = []

    def pause_after_the_first(attempt_id):
        ring_calls.append(attempt_id)
        if len(ring_calls) == 1:
            Attempt.objects.filter(pk=attempt.pk).update(wanted="pause")

    monkeypatch.setattr("training.trainer_process.ring", pause_after_the_first)
    loop = loop_of(attempt)
    assert not loop.turn()
    assert len(values(attempt, "supervised", "loss")) == 1
    assert not loop.turn()
    Attempt.objects.filter(pk=attempt.pk).update(wanted="run")
    assert loop.turn()
    assert len(values(attempt, "supervised", "loss")) == 4
    assert real is type(loop)._ready_trainer


def test_three_bad_steps_in_a_row_pause_it_with_the_cause_and_the_weights_are_those_of_before(tmp_path, monkeypatch):
    attempt = supervised(tmp_path, num=12)
    loop = loop_of(attempt)
    trainer = loop._ready_trainer(attempt, loop_config(attempt))
    before = {name: master.detach().clone() for name, master in trainer.masters.masters.items()}
    with monkeypatch.context() as patch:
        patch.setattr(trainer.masters, "scale_and_clip", lambda **kwargs: float("nan"))
        assert not loop.turn()
    attempt.refresh_from_db()
    assert attempt.wanted == Attempt.Wanted.PAUSE
    assert "gradient is not finite" in attempt.state_reason
    assert values(attempt, "supervised", "dropped_steps") == [1.0] * 3
    assert all(torch.equal(before[name], master) for name, master in trainer.masters.masters.items())
    assert attempt.events.filter(kind="step_dropped").count() == 3
    Attempt.objects.filter(pk=attempt.pk).update(wanted="run")
    assert loop.turn()
    assert len(values(attempt, "supervised", "loss")) == 3


def loop_config(attempt):
    from training.trainer_process import config_of

    return config_of(attempt)


def test_a_data_set_that_is_gone_fails_the_attempt_with_what_to_do(tmp_path):
    attempt = supervised(tmp_path)
    Dataset.objects.all().delete()
    assert not loop_of(attempt).turn()
    step = OptimizerStep.objects.get(attempt=attempt)
    assert step.state == OptimizerStep.State.FAILED
    assert "make it again" in step.error


def test_a_data_set_counts_what_cannot_be_trained_and_refuses_an_empty_one(tmp_path):
    attempt = make_attempt(tmp_path)
    good, live = make_rollout(attempt, 1), make_rollout(attempt, 2)
    live.state = "running"
    live.save()
    made = datasets.make_rollout_dataset(name="x", rollout_ids=[good.pk, live.pk, good.pk], query={})
    assert (made.dataset.items, made.left_out) == ([str(good.pk)], {"not ended": 1})
    with pytest.raises(datasets.DatasetError, match="No rollout can be trained"):
        datasets.make_rollout_dataset(name="y", rollout_ids=[live.pk], query={})
    with pytest.raises(datasets.DatasetError, match="already a data set"):
        datasets.make_rollout_dataset(name="x", rollout_ids=[good.pk], query={})


def test_version_0_holds_the_trained_weights(tmp_path):
    attempt = supervised(tmp_path)
    loop_of(attempt).turn()
    found = load_file(f"{Version.objects.get(attempt=attempt).path}/model.safetensors")
    base = load_file(tmp_path / "model" / "model.safetensors")
    assert not same(base, found)
