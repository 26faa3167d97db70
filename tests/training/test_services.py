"""What people may do to runs, and what they are told when they may not."""

import pytest

from environments.models import Harness, Model, Rollout, Task
from tests.training.factories import config_data, make_catalog, make_config
from training import services
from training.models import Attempt, Group, Member, OptimizerStep
from training.services import InvalidTransition, NameTaken, check_config, config_from_toml, start_run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _catalog(tmp_path):
    make_catalog(tmp_path)


def wrong_fields(data) -> dict[str, str]:
    config, errors = check_config(data)
    assert config is None
    assert all(error.message and error.remedy for error in errors)
    return {error.field: f"{error.message} {error.remedy}" for error in errors}


def test_a_config_that_fits_the_catalog_is_accepted():
    config, errors = check_config(config_data())
    assert errors == []
    assert config == make_config()


def test_everything_that_is_wrong_is_named_at_once():
    Model.objects.update(path="/no/such/model")
    wrong = wrong_fields(
        config_data(
            tasks={"rollouts_per_group": 1, "groups_per_step": "many"},
            budgets={"max_context_tokens": 100_000},
            sampling={"top_k": 50},
            schedule={"modes": "sync"},
            colour="green",
        )
    )
    assert set(wrong) == {
        "tasks.rollouts_per_group",
        "tasks.groups_per_step",
        "budgets.max_context_tokens",
        "engine.max_context_tokens",
        "sampling.top_k",
        "schedule.modes",
        "colour",
        "model.name",
    }
    assert "nothing to compare with" in wrong["tasks.rollouts_per_group"]
    assert "/no/such/model" in wrong["model.name"]
    assert "at most 2048" in wrong["budgets.max_context_tokens"]
    assert "mask" in wrong["sampling.top_k"]
    assert "Did you mean mode?" in wrong["schedule.modes"]


@pytest.mark.parametrize(
    ("sections", "field", "words"),
    [
        ({"model": {"name": "nobody"}}, "model.name", "tiny"),
        ({"model": {"start_from": "x/1/9"}}, "model.start_from", "run name"),
        ({"harness": {"name": "nobody"}}, "harness.name", "mini"),
        ({"harness": {"max_running": 0}}, "harness.max_running", "at least 1"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p", "mask"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature", "equal rollouts"),
        ({"sampling": {"temperature": float("inf")}}, "sampling.temperature", "finite"),
        ({"sampling": {"max_tokens": 700}}, "sampling.max_tokens", "max_sampled_tokens"),
        ({"budgets": {"max_context_tokens": 90}}, "budgets.max_context_tokens", "room for a prompt"),
        ({"engine": {"max_context_tokens": 1000}}, "engine.max_context_tokens", "1200"),
        ({"budgets": {"overall_time_s": 60}}, "budgets.overall_time_s", "wall_time_s"),
        ({"schedule": {"cells": 2}}, "schedule.cells", "not built yet"),
        ({"schedule": {"mode": "async"}}, "schedule.mode", "async"),
        ({"schedule": {"mode": "fast"}}, "schedule.mode", "'elastic', 'colocate', 'async' or 'sync'"),
        ({"schedule": {"mode": "sync", "staleness": 1}}, "schedule.staleness", "sync"),
        ({"schedule": {"min_members": 4}}, "schedule.min_members", "at most 3"),
        ({"tasks": {"mixture": []}}, "tasks.mixture", "at least 1"),
        ({"tasks": {"mixture": [{"taskset": "none"}]}}, "tasks.mixture.0.taskset", "small"),
        ({"tasks": {"mixture": [{"taskset": "small", "weight": 0}]}}, "tasks.mixture.0.weight", "more than 0"),
        ({"tasks": {"mixture": [{"taskset": "small", "families": ["x"]}]}}, "tasks.mixture.0.families", "family-0"),
        ({"evaluation": {"tasks": 13}}, "evaluation.tasks", "at most 12"),
        ({"engine": {"max_context_tokens": 4096}}, "engine.max_context_tokens", "at most 2048"),
    ],
)
def test_a_wrong_field_is_refused_with_what_would_be_right(sections, field, words):
    wrong = wrong_fields(config_data(**sections))
    assert words in wrong[field]


def test_tasks_that_need_an_image_are_refused_by_name_where_process_sandboxes_are_wanted():
    Task.objects.filter(name="train-3").update(image="registry/tool:1")
    assert "train-3" in wrong_fields(config_data(harness={"sandbox": "process"}))["harness.sandbox"]
    assert check_config(config_data(harness={"sandbox": "auto"}))[0] is not None


def test_a_task_set_with_held_out_tasks_only_cannot_be_trained_on():
    Task.objects.filter(split=Task.Split.TRAIN).delete()
    assert "no matching task" in wrong_fields(config_data())["tasks.mixture.0.taskset"]


def test_what_is_not_a_table_is_refused():
    assert check_config([])[0] is None  # type: ignore[arg-type]
    assert wrong_fields({"tasks": {"mixture": "small"}, "model": 7}).keys() >= {"tasks.mixture", "model"}


def test_bad_toml_is_one_error_that_names_the_line():
    config, errors = config_from_toml("seed = 1\nmodel = [")
    assert config is None
    assert "ine 2" in errors[0].message


def test_a_started_run_has_a_queued_attempt_with_every_default_resolved():
    attempt = start_run(name="first", config=make_config())
    assert (attempt.number, attempt.state, attempt.wanted) == (1, "queued", "run")
    assert attempt.config["optimization"]["max_grad_norm"] == 1.0
    assert attempt.provenance["packages"]["django"]
    assert attempt.events.get().kind == "started"


def test_a_name_is_used_once():
    start_run(name="first", config=make_config())
    with pytest.raises(NameTaken, match="first"):
        start_run(name="first", config=make_config())


def test_a_second_attempt_waits_for_the_end_of_the_first():
    attempt = start_run(name="first", config=make_config())
    with pytest.raises(InvalidTransition, match="Attempt 1"):
        services.start_attempt(run=attempt.run, config=make_config())
    Attempt.objects.update(state=Attempt.State.STOPPED)
    assert services.start_attempt(run=attempt.run, config=make_config()).number == 2


@pytest.mark.parametrize("path", [["pause", "run", "stop", "cancel"], ["pause", "stop"], ["cancel"]])
def test_a_run_is_paused_resumed_stopped_and_cancelled(path):
    attempt = start_run(name="first", config=make_config())
    for wanted in path:
        assert services.request(attempt.id, wanted).wanted == wanted


@pytest.mark.parametrize("path", [["stop", "run"], ["stop", "pause"], ["cancel", "stop"], ["cancel", "run"]])
def test_what_is_ending_cannot_be_brought_back(path):
    attempt = start_run(name="first", config=make_config())
    services.request(attempt.id, path[0])
    with pytest.raises(InvalidTransition, match="so it cannot be"):
        services.request(attempt.id, path[1])


def test_asking_twice_is_asking_once():
    attempt = start_run(name="first", config=make_config())
    services.request(attempt.id, "pause")
    services.request(attempt.id, "pause")
    assert attempt.events.filter(kind="pause_requested").count() == 1


def test_an_attempt_that_is_over_says_so():
    attempt = start_run(name="first", config=make_config())
    Attempt.objects.update(state=Attempt.State.COMPLETED)
    with pytest.raises(InvalidTransition, match="is over"):
        services.request(attempt.id, "cancel")


@pytest.fixture
def member() -> Member:
    attempt = start_run(name="judged", config=make_config())
    task = Task.objects.filter(split="train")[0]
    rollout = Rollout.objects.create(
        task=task, model=Model.objects.get(), harness=Harness.objects.get(), pool=attempt.pool,
        state="ended", outcome="completed", reward=0.0,
    )  # fmt: skip
    group = Group.objects.create(attempt=attempt, index=0, task=task, state=Group.State.READY)
    return Member.objects.create(group=group, rollout=rollout, slot=0)


def judge(member: Member, **judgement) -> str:
    defaults = {"reward": None, "include": Member.Include.AS_SCORED, "release_hold": False}
    effect = services.apply_judgement(rollout_id=member.rollout_id, **(defaults | judgement))
    member.refresh_from_db()
    return effect


def test_an_override_before_the_group_is_eaten_is_what_training_uses(member):
    assert judge(member, reward=1.0) == "trains"
    assert (member.reward, member.rollout.reward) == (1.0, 0.0)
    member.group.refresh_from_db()
    assert member.group.state == Group.State.OPEN  # settled again with the new reward


def test_an_override_can_be_withdrawn(member):
    judge(member, reward=1.0)
    assert judge(member) == "trains"
    assert member.reward == 0.0


def test_a_group_that_was_eaten_is_not_changed_any_more(member):
    Group.objects.update(state=Group.State.EATEN)
    assert judge(member, reward=1.0) == "too_late"
    assert member.effective_reward is None


def test_a_group_that_a_step_has_claimed_is_not_changed_any_more(member):
    step = OptimizerStep.objects.create(attempt=member.group.attempt, number=1, trains_version=0)
    Group.objects.update(step=step)
    assert judge(member, include="drop") == "too_late"


def test_marks_on_turns_train_only_where_the_run_weighs_them(member):
    assert judge(member, turn_marks={"1": True}) == "none"
    attempt = member.group.attempt
    attempt.config["objective"]["turn_mark_weight"] = 0.5
    attempt.save(update_fields=["config"])
    assert judge(member, turn_marks={"1": False}) == "trains"
    assert member.turn_marks == {"1": False}
    Group.objects.update(state=Group.State.EATEN)
    assert judge(member, turn_marks={"1": True}) == "too_late"
    assert member.turn_marks == {"1": False}


def test_a_judgement_that_changes_nothing_has_no_effect(member):
    assert judge(member) == "none"


def test_releasing_a_held_member_lets_its_group_go_on(member):
    Member.objects.update(hold=True, disposition="held")
    assert judge(member, release_hold=True) == "trains"
    assert (member.hold, member.disposition) == (False, "pending")


def test_an_excluded_member_that_a_person_scores_is_trained_after_all(member):
    Rollout.objects.update(outcome="verifier_error", reward=None)
    Member.objects.update(disposition="excluded", reason="verifier error")
    assert judge(member, include="keep") == "none"  # never scored: nothing to train with
    assert judge(member, include="keep", reward=0.5) == "trains"
    assert member.disposition == "pending"


def test_a_rollout_of_no_group_has_nothing_to_train(member):
    other = Rollout.objects.create(
        task=member.rollout.task, model=member.rollout.model, harness=member.rollout.harness, pool="x"
    )
    assert services.apply_judgement(rollout_id=other.id, reward=1.0, include="keep", release_hold=True) == "none"


def test_an_estimate_counts_rollouts_and_warns_of_what_does_nothing():
    config = make_config(schedule={"staleness": 1}, evaluation={"tasks": 10, "every_steps": 1})
    forecast = services.estimate(config)
    assert forecast["rollouts"] == {"demonstrations": 0, "training": 12, "evaluation": 30}
    assert forecast["hours"] > 0
    assert any("lead_groups" in warning for warning in forecast["warnings"])
