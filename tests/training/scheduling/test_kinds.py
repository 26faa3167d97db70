"""Kinds of run through the controller: what is dispatched, what is trained, when it is over."""

import pytest

from environments.models import Rollout
from tests.training.factories import config_data, make_catalog, make_config
from tests.training.scheduling.world import World
from training import services
from training.config import RunConfig
from training.models import Attempt, Cell, Dataset, Group, Version

pytestmark = pytest.mark.django_db


def start(tmp_path, **sections):
    make_catalog(tmp_path)
    attempt = services.start_run(name="r", config=make_config(**sections))
    return World(attempt_id=attempt.id)


def dispatch(world, number):
    """Up to so many evaluation rollouts that run."""
    for _ in range(50):
        world.round()
        if world.unfinished("evaluation").count() == number:
            return
        world.cells()
        world.trainer()
    raise AssertionError(world.attempt.phase)


def over(world):
    return lambda: world.attempt.is_over


def test_an_evaluation_run_measures_the_model_as_it_lies_and_trains_nothing(tmp_path):
    world = start(tmp_path, kind="evaluation", evaluation={"tasks": 4, "samples_per_task": 3})
    world.run_until(over(world))
    attempt = world.attempt
    assert attempt.state == Attempt.State.COMPLETED
    version = Version.objects.get(attempt=attempt)
    assert version.path == str(tmp_path / "model")
    state = version.evaluation["heldout"]
    assert (state["n"], state["samples"], set(state["pass_at"])) == (12, 3, {"1", "2", "3"})
    assert world.rollouts("evaluation").count() == 12
    assert not Group.objects.filter(attempt=attempt).exists()
    assert not world.rollouts("demonstration").exists()
    assert [role for _, role in Cell.objects.get(attempt=attempt).history] == []


def test_a_rollout_that_could_not_be_scored_is_done_again_and_other_places_of_its_task_are_not(tmp_path):
    world = start(tmp_path, kind="evaluation", evaluation={"tasks": 2, "samples_per_task": 2})
    dispatch(world, 4)
    world.fail_rollout(world.unfinished("evaluation").first())
    world.run_until(over(world))
    state = Version.objects.get(attempt=world.attempt).evaluation["heldout"]
    assert sorted(len(tries) for tries in state["rollouts"].values()) == [1, 1, 1, 2]
    assert state["missing"] == 0


def test_a_version_that_is_measured_is_pinned_so_that_its_weights_stay(tmp_path):
    make_catalog(tmp_path)
    source = services.start_run(name="source", config=make_config())
    weights = tmp_path / "weights"
    weights.mkdir()
    version = Version.objects.create(attempt=source, number=3, path=str(weights))
    config, errors = services.check_config(
        config_data(kind="evaluation", model={"start_from": "source/1/3"}, evaluation={"tasks": 2})
    )
    assert not errors
    world = World(attempt_id=services.start_run(name="r", config=config).id)
    world.round()
    version.refresh_from_db()
    assert version.pinned
    assert Version.objects.get(attempt=world.attempt).path == str(weights)


@pytest.mark.parametrize("kind", ["supervised", "preference"])
def test_a_run_on_a_data_set_ends_with_version_0_and_needs_no_engine_without_evaluation(tmp_path, kind):
    world = start(tmp_path, kind=kind, evaluation={"tasks": 0})
    world.run_until(over(world))
    assert world.attempt.state == Attempt.State.COMPLETED
    assert not Rollout.objects.filter(pool__startswith=world.attempt.pool).exists()
    assert Cell.objects.get(attempt=world.attempt).wanted_role == Cell.Role.DOWN


def test_a_run_on_a_data_set_evaluates_what_it_made(tmp_path):
    world = start(tmp_path, kind="supervised", evaluation={"tasks": 3}, warm_start={"demonstrations": 5})
    world.run_until(over(world))
    state = Version.objects.get(attempt=world.attempt).evaluation["heldout"]
    assert (state["state"], state["n"]) == ("done", 3)
    assert not world.rollouts("demonstration").exists()
    assert world.attempt.step == 0


def test_stop_in_the_middle_of_an_evaluation_ends_it_when_what_runs_has_ended(tmp_path):
    world = start(tmp_path, kind="evaluation", evaluation={"tasks": 4}, harness={"max_running": 2})
    dispatch(world, 2)
    services.request(world.attempt_id, "stop")
    world.run_until(over(world))
    assert world.attempt.state == Attempt.State.STOPPED
    assert world.rollouts("evaluation").count() == 2


def test_resume_clears_the_reason_for_which_it_paused_by_itself(tmp_path):
    world = start(tmp_path)
    Attempt.objects.filter(pk=world.attempt_id).update(wanted="pause", state_reason="because")
    services.request(world.attempt_id, "run")
    assert world.attempt.state_reason == ""


WRONG = [
    ({"kind": "evaluation", "evaluation": {"tasks": 0}}, "evaluation.tasks"),
    ({"kind": "supervised"}, "supervised.dataset"),
    ({"kind": "supervised", "supervised": {"dataset": "pairs"}}, "supervised.dataset"),
    ({"kind": "preference", "preference": {"dataset": "nothing"}}, "preference.dataset"),
    ({"evaluation": {"tasks": 2, "split": "train"}}, "evaluation.split"),
]


@pytest.mark.parametrize(("sections", "field"), WRONG)
def test_what_a_kind_needs_and_lacks_is_named(tmp_path, sections, field):
    make_catalog(tmp_path)
    Dataset.objects.create(name="pairs", kind="pairs", items=[["a", "b"]], num_items=1, digest="0")
    config, errors = services.check_config(config_data(**sections))
    assert config is None
    assert field in [error.field for error in errors]
    assert all(error.remedy for error in errors)


def test_an_evaluation_may_sample_in_ways_that_training_may_not(tmp_path):
    make_catalog(tmp_path)
    sampling = {"temperature": 0.0, "top_p": 0.9}
    data = config_data(kind="evaluation", sampling=sampling, evaluation={"tasks": 2, "split": "train"})
    config, errors = services.check_config(data)
    assert not errors
    assert services.check_config(config_data(sampling=sampling))[0] is None
    assert isinstance(config, RunConfig)
