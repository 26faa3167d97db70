"""The trainer process: orders carried out once, whatever kills it."""

from pathlib import Path

import pytest
import torch
from django.core.management import CommandError, call_command
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from environments.models import Rollout
from tests.training.attempts import make_attempt, make_demonstrations, make_rollout, request_step
from training import step_commit, trainer_process
from training.models import Attempt, Checkpoint, Group, Member, Metric, OptimizerStep, Version
from training.token_stats import decode_token_stats
from training.trainer import Trainer
from training.trainer_process import TrainerLoop

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


@pytest.fixture(autouse=True)
def data_directory(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"


def loop_of(attempt):
    return TrainerLoop(cell_id=attempt.cells.get().id, should_stop=lambda: False)


def warm(attempt):
    make_demonstrations(attempt)
    loop = loop_of(attempt)
    assert loop.turn()
    Attempt.objects.filter(pk=attempt.pk).update(state=Attempt.State.RUNNING)
    return loop


def last_weights(attempt):
    return load_file(Path(Checkpoint.objects.filter(attempt=attempt).latest("step").path) / "masters.safetensors")


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_warm_start_waits_for_every_demonstration_and_then_writes_version_0(tmp_path):
    attempt = make_attempt(tmp_path)
    make_demonstrations(attempt, 7)
    late = make_rollout(attempt, 1000, demonstration=True, task="late")
    late.state = "running"
    late.save()
    loop = loop_of(attempt)
    assert not loop.turn()
    late.state = "ended"
    late.save()
    assert loop.turn()
    version = Version.objects.get(attempt=attempt)
    assert (version.number, version.published_at) == (0, None)
    AutoModelForCausalLM.from_pretrained(version.path)
    losses = Metric.objects.filter(attempt=attempt, kind="supervised", key="loss").order_by("step")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert losses[3].value < losses[0].value
    assert Checkpoint.objects.get(attempt=attempt).step == 0
    assert not loop.turn()


def test_without_demonstrations_version_0_is_the_model_itself(tmp_path):
    attempt = make_attempt(tmp_path, warm_start={"demonstrations": 0})
    assert loop_of(attempt).turn()
    base = load_file(tmp_path / "model" / "model.safetensors")
    found = load_file(Path(Version.objects.get(attempt=attempt).path) / "model.safetensors")
    assert same(base, found)


def test_a_step_changes_members_groups_counters_metrics_and_versions_together(tmp_path):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    step = request_step(attempt, 1, rewards=((1, 0, 0), (1, 1, 1)))
    assert loop.turn()
    step.refresh_from_db()
    attempt.refresh_from_db()
    assert (step.state, attempt.step, attempt.consumed_rollouts) == (OptimizerStep.State.DONE, 1, 6)
    assert set(Group.objects.values_list("state", "no_signal")) == {("eaten", False), ("eaten", True)}
    winner = Member.objects.get(group__no_signal=False, slot=0)
    assert winner.disposition == Member.Disposition.TRAINED
    assert winner.advantage == pytest.approx(2 / 3 / (1 / 3) ** 0.5)
    assert (winner.trained_tokens, winner.num_samples, winner.staleness) == (4 + 5, 1, 0)
    assert set(decode_token_stats(winner.token_stats)) == {1, 3}
    silent = Member.objects.filter(group__no_signal=True).first()
    assert (silent.disposition, silent.advantage, silent.reason[:9]) == ("trained", 0.0, "no signal")
    assert Version.objects.filter(attempt=attempt, number=1, step=1, published_at=None).exists()
    values = {m.key: m.value for m in Metric.objects.filter(attempt=attempt, kind="policy", step=1)}
    assert values["no_signal_fraction"] == 0.5
    assert values["reward_mean/sort"] == pytest.approx(4 / 6)
    assert values["mismatch_mean"] > 0


def test_a_step_that_has_nothing_to_learn_from_is_said_with_what_to_do(tmp_path):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    request_step(attempt, 1, rewards=((1, 0, 0), (1, 1, 1)))
    loop.turn()
    assert not attempt.events.filter(kind="no_signal").exists()
    request_step(attempt, 2, rewards=((0, 0, 0), (0, 0, 0)))
    loop.turn()
    warning = attempt.events.get(kind="no_signal")
    assert warning.level == "warning"
    assert "Step 2 had nothing to learn from" in warning.text
    assert "kl_coefficient" in warning.text


def test_a_verifier_error_leaves_mean_and_deviation_and_is_excluded_with_its_reason(tmp_path):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    request_step(attempt, 1, rewards=((1, 0, None), (1, 0, 0)))
    loop.turn()
    error = Member.objects.get(rollout__outcome="verifier_error")
    assert (error.disposition, error.reason, error.advantage) == ("excluded", "never scored: verifier error", None)
    others = Member.objects.filter(group=error.group).exclude(pk=error.pk).order_by("slot")
    assert [member.advantage for member in others] == pytest.approx([0.5**0.5, -(0.5**0.5)])
    attempt.refresh_from_db()
    assert attempt.consumed_rollouts == 6


@pytest.mark.parametrize(
    ("wish", "advantages"), [("exclude", [0.5**0.5, -(0.5**0.5)]), ("zero", [2 / 3**0.5, -1 / 3**0.5])]
)
def test_an_image_that_cannot_be_had_moves_the_baseline_only_where_the_run_says_so(tmp_path, wish, advantages):
    attempt = make_attempt(tmp_path, objective={"image_unavailable": wish})
    loop = warm(attempt)
    request_step(attempt, 1, rewards=((1, 0, None), (1, 0, 0)))
    Rollout.objects.filter(outcome="verifier_error").update(outcome="image_unavailable")
    loop.turn()
    missing = Member.objects.get(rollout__outcome="image_unavailable")
    assert (missing.disposition == "excluded") == (wish == "exclude")
    others = Member.objects.filter(group=missing.group).exclude(pk=missing.pk).order_by("slot")
    assert [member.advantage for member in others] == pytest.approx(advantages)


def test_a_persons_reward_is_what_is_trained_and_a_dropped_member_is_not(tmp_path):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    request_step(attempt, 1, rewards=((0, 0, 0), (1, 0, 0)))
    Member.objects.filter(group__index=10, slot=2).update(effective_reward=1.0)
    Member.objects.filter(group__index=11, slot=0).update(include=Member.Include.DROP)
    loop.turn()
    assert Member.objects.get(group__index=10, slot=2).advantage > 1
    dropped = Member.objects.get(group__index=11, slot=0)
    assert (dropped.disposition, dropped.reason) == ("excluded", "dropped by a person")
    assert Group.objects.get(index=11).no_signal


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def kill_at(monkeypatch, name, *, before):
    """Die once, just before or just after what the trainer process, or its commit of a step, calls by this name."""
    module = step_commit if name in ("save_members", "record_event") else trainer_process
    real = getattr(module, name)
    left = [1]

    def deadly(*args, **kwargs):
        if before and left and left.pop():
            raise Killed
        result = real(*args, **kwargs)
        if not before and left and left.pop():
            raise Killed
        return result

    monkeypatch.setattr(module, name, deadly)


KILL_POINTS = [
    ("load_policy_batch", True),
    ("save_checkpoint", True),
    ("save_checkpoint", False),
    ("save_version", False),
    ("save_members", False),
    ("record_event", True),
    ("commit_step", False),
]


@pytest.mark.parametrize(
    ("name", "before", "checkpoint_every"),
    [
        (name, before, every)
        for name, before in KILL_POINTS
        for every in (1, 3)
        if every == 1 or name != "save_checkpoint"  # with 3 there is none at step 2, where it is killed
    ],
)
def test_killed_anywhere_in_a_step_it_ends_with_the_weights_and_rows_of_an_undisturbed_run(
    tmp_path, monkeypatch, name, before, checkpoint_every
):
    schedule = {"checkpoint_every": checkpoint_every, "burst_steps": 2}
    calm = make_attempt(tmp_path, name="calm", schedule=schedule)
    disturbed = make_attempt(tmp_path, name="disturbed", schedule=schedule)
    for attempt in (calm, disturbed):
        warm(attempt)
    loop = loop_of(calm)
    for number in (1, 2, 3):
        request_step(calm, number)
        loop.turn()

    loop = loop_of(disturbed)
    for number in (1, 2, 3):
        request_step(disturbed, number)
        if number == 2:
            with monkeypatch.context() as patch:
                kill_at(patch, name, before=before)
                with pytest.raises(Killed):
                    loop.turn()
            loop = loop_of(disturbed)
        loop.turn()

    if checkpoint_every == 1:
        assert same(last_weights(calm), last_weights(disturbed))
    calm_weights = loop_weights(loop_of(calm), calm)
    assert same(calm_weights, loop_weights(loop_of(disturbed), disturbed))
    for attempt in (calm, disturbed):
        attempt.refresh_from_db()
        assert (attempt.step, attempt.consumed_rollouts) == (3, 18)
        assert list(Version.objects.filter(attempt=attempt).values_list("number", flat=True)) == [0, 1]
        assert not Member.objects.filter(group__attempt=attempt).exclude(disposition="trained").exists()
        done = Metric.objects.filter(attempt=attempt, kind="policy", key="loss").order_by("step")
        assert list(done.values_list("step", flat=True)) == [1, 2, 3]
    on_disk = {path.name for path in (tmp_path / "data" / "attempts" / str(disturbed.id) / "versions").iterdir()}
    assert on_disk == {"000000", "000001"}


def loop_weights(loop, attempt):
    """Of a trainer that starts now, from checkpoint and replay."""
    from training.config import RunConfig

    trainer = loop._ready_trainer(attempt, RunConfig.model_validate(attempt.config))
    return {name: tensor.detach().clone() for name, tensor in trainer.masters.state().items()}


def test_a_warm_start_killed_in_the_middle_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_process, "CHECKPOINT_STEPS", 2)
    calm, disturbed = make_attempt(tmp_path, name="calm"), make_attempt(tmp_path, name="disturbed")
    warm(calm)
    make_demonstrations(disturbed)
    with monkeypatch.context() as patch:
        kill_at(patch, "save_checkpoint", before=False)
        with pytest.raises(Killed):
            loop_of(disturbed).turn()
    assert not Checkpoint.objects.filter(attempt=disturbed).exists()
    steps = []
    real = Trainer.supervised_step
    monkeypatch.setattr(Trainer, "supervised_step", lambda *a, **k: (steps.append(1), real(*a, **k))[1])
    loop_of(disturbed).turn()
    assert len(steps) == 2
    assert same(last_weights(calm), last_weights(disturbed))


def test_a_step_that_another_trainer_committed_is_not_committed_again(tmp_path):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    step = request_step(attempt, 1)
    OptimizerStep.objects.filter(pk=step.pk).update(state=OptimizerStep.State.TRAINING)
    batch = trainer_process.load_policy_batch(step, trainer_process.RunConfig.model_validate(attempt.config))
    loop.turn()
    with pytest.raises(step_commit.TrainerBusy):
        trainer_process.commit_step(step, batch, None, metrics={}, version=None)
    assert Attempt.objects.get(pk=attempt.pk).consumed_rollouts == 6


def test_a_step_without_a_finite_gradient_is_dropped_with_words_and_keeps_the_weights(tmp_path):
    attempt = make_attempt(tmp_path)
    loop = warm(attempt)
    step = request_step(attempt, 1, rewards=((float("inf"), 0, 0), (1, 0, 0)))
    before = last_weights(attempt)
    loop.turn()
    step.refresh_from_db()
    assert step.state == OptimizerStep.State.DROPPED
    assert "nothing was changed" in step.error
    assert same(before, last_weights(attempt))
    assert Attempt.objects.get(pk=attempt.pk).step == 1


def test_retention_keeps_one_checkpoint_version_0_the_last_published_and_pinned_ones(tmp_path):
    attempt = make_attempt(tmp_path, schedule={"keep_versions": 1})
    loop = warm(attempt)
    for number in (1, 2, 3, 4):
        request_step(attempt, number)
        loop.turn()
        Version.objects.filter(attempt=attempt, number=number).update(
            published_at="2026-01-01T00:00Z", pinned=number == 2
        )
    kept = {version.number for version in Version.objects.filter(attempt=attempt).exclude(path="")}
    assert kept == {0, 2, 4}
    assert [checkpoint.step for checkpoint in Checkpoint.objects.filter(attempt=attempt)] == [4]


def test_one_trainer_an_attempt(tmp_path, monkeypatch):
    attempt = make_attempt(tmp_path)
    monkeypatch.setattr(trainer_process, "LOCK_S", 0.0)
    path = trainer_process.AttemptFiles.of(attempt.id).lock
    held = trainer_process.take_lock(path, lambda: False)
    with pytest.raises(step_commit.TrainerBusy, match="another trainer"):
        loop_of(attempt).run()
    trainer_process.os.close(held)


def test_a_version_is_exported_whole_with_its_provenance_and_a_wrong_name_says_which_there_are(tmp_path):
    attempt = make_attempt(tmp_path)
    warm(attempt)
    call_command("export", "demo/1/0", str(tmp_path / "out"))
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert '"run": "demo"' in (tmp_path / "out" / "gyre.json").read_text()
    with pytest.raises(CommandError, match="versions on disk: 0"):
        call_command("export", "demo/1/7", str(tmp_path / "other"))
    with pytest.raises(CommandError, match="not empty"):
        call_command("export", "demo/1/0", str(tmp_path / "out"))
