"""Numbers that are not finite, checkpoints that do not fit, disks that are full."""

import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.training.attempts import request_step
from tests.training.test_trainer_process import last_weights, loop_of, make_attempt, same, warm
from tests.training.tiny import SETTINGS, make_sample, save_tiny_model
from training import storage
from training.checkpoints import CheckpointError, StorageFull, load_checkpoint, save_checkpoint, write_directory
from training.models import Attempt, Checkpoint, Group, Member, Metric, OptimizerStep, Version
from training.trainer import NotFinite, Trainer

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def data_directory(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"


@contextmanager
def largest_file(size):
    """A disk that takes only so much of each file, as seen by this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def poison(loop, monkeypatch):
    monkeypatch.setattr(loop.trainer.masters, "scale_and_clip", lambda **kwargs: float("nan"))


@pytest.mark.django_db
def test_a_policy_step_that_is_not_finite_is_dropped_counted_and_said_and_the_next_goes_on(tmp_path, monkeypatch):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    step = request_step(attempt, 1)
    with monkeypatch.context() as patch:
        poison(loop, patch)
        assert loop.turn()
    step.refresh_from_db()
    attempt.refresh_from_db()
    assert (step.state, attempt.step, attempt.consumed_rollouts, attempt.wanted) == ("dropped", 1, 6, "run")
    assert "not finite" in step.error
    members = Member.objects.filter(group__step=step)
    assert set(members.values_list("disposition", flat=True)) == {"excluded"}
    assert set(members.values_list("reason", flat=True)) == {"step dropped: loss or gradient not finite"}
    assert set(Group.objects.filter(step=step).values_list("state", flat=True)) == {"eaten"}
    assert Metric.objects.get(attempt=attempt, kind="policy", key="dropped_steps").value == 1
    assert attempt.events.filter(kind="step_dropped").count() == 1
    assert Version.objects.filter(attempt=attempt, number=1).exists()
    request_step(attempt, 2, version=1)
    loop.turn()
    assert OptimizerStep.objects.get(attempt=attempt, number=2).state == "done"


@pytest.mark.django_db
def test_after_three_in_a_row_the_run_pauses_with_the_cause_and_a_good_one_in_between_begins_anew(
    tmp_path, monkeypatch
):
    attempt = make_attempt(tmp_path, optimization={"steps": 9})
    loop = warm(attempt)
    before = last_weights(attempt)
    for number, bad in enumerate((True, True, False, True, True, True), start=1):
        request_step(attempt, number, version=number - 1)
        with monkeypatch.context() as patch:
            if bad:
                poison(loop, patch)
            loop.turn()
        attempt.refresh_from_db()
        assert attempt.wanted == ("pause" if number == 6 else "run"), number
    assert "the last 3 steps were dropped" in attempt.state_reason
    assert not same(before, last_weights(attempt))
    assert attempt.events.filter(kind="paused_by_itself").count() == 1


@pytest.mark.django_db
def test_a_dropped_step_is_not_trained_again_after_a_crash(tmp_path, monkeypatch):
    attempt = make_attempt(tmp_path, schedule={"checkpoint_every": 10})
    loop = warm(attempt)
    request_step(attempt, 1)
    with monkeypatch.context() as patch:
        poison(loop, patch)
        loop.turn()
    request_step(attempt, 2, version=1)
    loop.turn()
    weights = {name: master.detach().clone() for name, master in loop.trainer.masters.masters.items()}
    again = loop_of(attempt)
    trainer = again._load(attempt, again_config(attempt))
    assert all(torch.equal(weights[name], master) for name, master in trainer.masters.masters.items())


def again_config(attempt):
    from training.trainer_process import config_of

    return config_of(attempt)


def test_a_loss_that_is_not_finite_drops_the_step_even_where_the_gradient_is(tmp_path):
    trainer = Trainer.load(save_tiny_model(tmp_path / "model"), settings=SETTINGS, seed=0)
    with pytest.raises(NotFinite, match="loss is inf"):
        trainer.apply(denominator=1.0, learning_rate=1e-3, loss=float("inf"))


# ---- checkpoints


@pytest.fixture
def trained(tmp_path):
    trainer = Trainer.load(save_tiny_model(tmp_path / "model"), settings=SETTINGS, seed=0)
    trainer.supervised_step([make_sample(1)], learning_rate=1e-2)
    save_checkpoint(trainer, tmp_path / "checkpoint", counters={"step": 1})
    return trainer


def state_of(trainer):
    return {name: master.detach().clone() for name, master in trainer.masters.masters.items()}


@pytest.mark.parametrize("file", ["masters.safetensors", "moments.safetensors", "rng.pt", "state.json"])
def test_a_missing_file_is_named_and_the_trainer_stays_as_it_is(tmp_path, trained, file):
    before = state_of(trained)
    (tmp_path / "checkpoint" / file).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {file}.*start_from"):
        load_checkpoint(trained, tmp_path / "checkpoint")
    assert same(before, state_of(trained))


@pytest.mark.parametrize("file", ["masters.safetensors", "moments.safetensors", "state.json"])
def test_a_cut_file_is_refused_and_the_trainer_stays_as_it_is(tmp_path, trained, file):
    before = state_of(trained)
    path = tmp_path / "checkpoint" / file
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(trained, tmp_path / "checkpoint")
    assert same(before, state_of(trained))


def test_a_checkpoint_of_another_adapter_is_refused_with_what_differs(tmp_path, trained):
    lora = SETTINGS.model_copy(update={"adapter": "lora", "lora_rank": 2})
    other = Trainer.load(tmp_path / "model", settings=lora, seed=0)
    with pytest.raises(CheckpointError, match="adapter is 'none' there and 'lora' here"):
        load_checkpoint(other, tmp_path / "checkpoint")


@pytest.mark.django_db
def test_a_damaged_checkpoint_fails_the_attempt_with_what_to_do(tmp_path):
    attempt = make_attempt(tmp_path)
    warm(attempt)
    (Path(Checkpoint.objects.get(attempt=attempt).path) / "masters.safetensors").unlink()
    request_step(attempt, 1)
    loop_of(attempt).turn()
    step = OptimizerStep.objects.get(attempt=attempt, number=1)
    assert step.state == OptimizerStep.State.FAILED
    assert "lacks masters.safetensors" in step.error


# ---- full disks


def test_on_a_full_disk_nothing_is_left_half_written_and_what_was_there_stays(tmp_path, trained):
    path = tmp_path / "checkpoint"
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    trained.supervised_step([make_sample(2)], learning_rate=1e-2)
    with largest_file(2000), pytest.raises(StorageFull, match="no room"):
        save_checkpoint(trained, path, counters={"step": 2})
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".part"] == []


def test_another_error_while_writing_is_not_called_a_full_disk(tmp_path):
    def write(directory):
        (directory / "a").write_text("x")
        raise FileNotFoundError("b")

    with pytest.raises(FileNotFoundError):
        write_directory(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.django_db
def test_the_trainer_waits_for_room_says_so_once_and_goes_on(tmp_path, monkeypatch):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    request_step(attempt, 1)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    waits = []

    def wait(should_stop):
        waits.append(1)
        if len(waits) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, hard)

    monkeypatch.setattr(storage, "wait", wait)
    with largest_file(2000):
        loop.turn()
    assert len(waits) == 3
    assert OptimizerStep.objects.get(attempt=attempt, number=1).state == "done"
    kinds = list(attempt.events.filter(kind__startswith="storage").values_list("kind", flat=True))
    assert kinds == ["storage_full", "storage_freed"]
    assert Attempt.objects.get(pk=attempt.pk).step == 1
