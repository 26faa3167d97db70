"""The controller on real rows: it resumes anywhere, leads alone, and loses and doubles nothing."""

import contextlib
import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connection

from environments.models import Engine, Rollout
from tests.training.factories import end_rollout, make_catalog, make_config
from tests.training.scheduling.world import World
from training import services
from training.models import Attempt, Cell, ControllerLease, Group, Member, OptimizerStep, Version
from training.scheduling.controller import Controller
from training.scheduling.leadership import Fenced, Leadership

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _catalog(tmp_path):
    make_catalog(tmp_path)


def start(**sections) -> World:
    return World(attempt_id=services.start_run(name="run", config=make_config(**sections)).id)


def is_over(world: World):
    return lambda: world.attempt.is_over


def test_a_run_goes_from_its_start_to_its_end():
    world = start(warm_start={"demonstrations": 8}, evaluation={"tasks": 5}, optimization={"steps": 2})
    world.run_until(is_over(world))
    attempt = world.attempt
    assert (attempt.state, attempt.step, attempt.version) == ("completed", 2, 2)
    assert world.rollouts("demonstration").count() == 8
    assert world.rollouts("train").count() == 2 * 2 * 3
    assert [v.evaluation.get("heldout", {}).get("n") for v in attempt.versions.all()] == [5, None, 5]
    first, last = attempt.versions.first(), attempt.versions.last()
    assert first
    assert last
    assert first.evaluation["heldout"]["tasks"] == last.evaluation["heldout"]["tasks"]
    assert {cell.wanted_role for cell in attempt.cells.all()} == {"down"}
    assert attempt.events.filter(kind="version_published").count() == 3
    assert not Engine.objects.exclude(state="stopped").exists()
    phases = [event.data.get("phase") for event in attempt.events.filter(kind="phase").order_by("id")]
    assert "generation" not in phases[len(phases) - phases[::-1].index("training") :]


def test_demonstrations_are_spread_over_families():
    world = start(warm_start={"demonstrations": 8})
    world.round()
    families = Counter(world.rollouts("demonstration").values_list("task__family", flat=True))
    assert families == {f"family-{n}": 2 for n in range(4)}


class Killed(BaseException):
    """kill -9, between any two lines that matter."""


class DyingLeadership(Leadership):
    """Dies at its first act: before its commit, or right after it."""

    def __init__(self, *, commits: bool) -> None:
        super().__init__(lease_s=0.0)
        self.commits = commits

    @contextlib.contextmanager
    def act(self, attempt_id):
        with super().act(attempt_id) as attempt:
            yield attempt
            if not self.commits:
                raise Killed
        raise Killed


@pytest.mark.parametrize("mode", ["colocate", "elastic"])
def test_a_controller_killed_at_every_act_loses_nothing_and_doubles_nothing(mode):
    world = start(
        warm_start={"demonstrations": 4},
        evaluation={"tasks": 3},
        optimization={"steps": 3},
        schedule={"mode": mode, "burst_steps": 2},
    )
    num_killed = 0
    for number in range(2000):
        controller = Controller(leadership=DyingLeadership(commits=number % 2 == 1))
        try:
            controller.round()
            world.others()
        except Killed:
            num_killed += 1
        if world.attempt.is_over:
            break
    assert world.attempt.state == "completed"
    assert num_killed > 30
    groups = list(world.groups())
    assert [group.index for group in groups] == list(range(6))
    assert {group.state for group in groups} == {"eaten"}
    for group in groups:
        assert sorted(group.members.values_list("slot", "refill")) == [(0, 0), (1, 0), (2, 0)]
    steps = OptimizerStep.objects.filter(attempt=world.attempt)
    assert [(step.number, step.groups.count()) for step in steps] == [(1, 2), (2, 2), (3, 2)]
    purposes = Counter(Rollout.objects.values_list("purpose", flat=True))
    assert purposes == {"demonstration": 4, "evaluation": 6, "train": 18}


def test_of_two_controllers_one_leads():
    first, second = Leadership(), Leadership()
    assert first.lead()
    assert not second.lead()
    assert first.lead()
    first.resign()
    assert second.lead()
    assert second.epoch == first.epoch + 2 or second.epoch == 2


def test_the_acts_of_a_controller_that_was_replaced_are_fenced():
    world = start()
    old, new = Leadership(lease_s=0.0), Leadership(lease_s=60.0)
    assert old.lead()
    assert new.lead()
    with pytest.raises(Fenced), old.act(world.attempt_id) as attempt:
        Attempt.objects.filter(pk=attempt.pk).update(state=Attempt.State.FAILED)
    assert world.attempt.state == "queued"
    assert not Controller(leadership=old).round()
    with new.act(world.attempt_id):
        pass


def test_nobody_takes_the_lead_in_the_middle_of_an_act():
    world = start()
    old, new = Leadership(lease_s=0.0), Leadership(lease_s=60.0)
    old.lead()
    led: list[bool] = []

    def take() -> None:
        led.append(new.lead())
        connection.close()

    taker = threading.Thread(target=take)
    with old.act(world.attempt_id):
        taker.start()
        taker.join(0.3)
        assert not led
    taker.join(10)
    assert led == [True]
    with pytest.raises(Fenced), old.act(world.attempt_id):
        pass
    assert ControllerLease.objects.get().owner == new.owner


def test_never_more_rollouts_run_than_the_harness_allows():
    world = start(harness={"name": "mini", "max_running": 4})
    world.go_online()
    for _ in range(10):
        assert world.unfinished().count() <= 4
        rollout = world.unfinished().first()
        if rollout is None:
            break
        end_rollout(rollout.id)
        world.round()
    assert world.rollouts().count() == 6


def test_with_no_staleness_the_next_batch_waits_for_the_published_version():
    world = start()
    world.go_online()
    world.end_rollouts()
    for _ in range(3):
        world.round()
    assert world.rollouts().count() == 6
    assert world.attempt.cells.get().wanted_role == "trains"


def test_a_lead_dispatches_ahead_up_to_its_depth():
    world = start(schedule={"mode": "elastic", "staleness": 1, "lead_groups": 1})
    world.go_online()
    world.round()
    assert world.groups().count() == 3  # Q_b = 1 + 1 * 2


def test_paused_it_dispatches_and_trains_nothing_and_resumed_it_goes_on():
    world = start()
    world.go_online()
    services.request(world.attempt_id, "pause")
    world.round()
    assert world.attempt.state == "running"  # what runs is finished first
    world.end_rollouts()
    for _ in range(3):
        world.round()
        world.cells()
    assert world.attempt.state == "paused"
    assert not OptimizerStep.objects.exists()
    assert world.rollouts().count() == 6
    services.request(world.attempt_id, "run")
    world.run_until(is_over(world))
    assert world.attempt.state == "completed"


def test_stopped_it_finishes_what_runs_trains_a_full_batch_and_ends():
    world = start()
    world.go_online()
    services.request(world.attempt_id, "stop")
    world.round()
    assert world.attempt.state == "stopping"
    world.run_until(is_over(world))
    assert (world.attempt.state, world.attempt.step, world.attempt.version) == ("stopped", 1, 1)
    assert world.rollouts().count() == 6


def test_stopped_without_a_full_batch_what_is_left_has_a_reason():
    world = start()
    world.go_online()
    one, *others = world.unfinished()
    for rollout in others:
        end_rollout(rollout.id)
    services.request(world.attempt_id, "stop")
    world.round()
    world.fail_rollout(one)
    Member.objects.filter(rollout=others[0]).update(include="drop")
    world.run_until(is_over(world))
    assert world.attempt.state == "stopped"
    assert world.rollouts().count() == 6  # no refill while it stops
    assert not Member.objects.filter(disposition="pending").exists()
    assert all(reason for reason in Member.objects.filter(disposition="excluded").values_list("reason", flat=True))


def test_cancelled_everything_ends_now():
    world = start()
    world.go_online()
    services.request(world.attempt_id, "cancel")
    world.round()
    assert world.attempt.state == "cancelled"
    assert not world.unfinished().exclude(cancel_requested_at__isnull=False).exists()
    assert set(world.groups().values_list("state", flat=True)) == {"excluded"}
    assert world.attempt.cells.get().wanted_role == "down"


def test_cancelled_in_its_warm_start_it_ends_too():
    world = start(warm_start={"demonstrations": 4})
    world.round()
    services.request(world.attempt_id, "cancel")
    world.round()
    world.round()
    assert world.attempt.state == "cancelled"
    assert not world.unfinished("demonstration").exists()  # nobody drove them: they end at once


def test_an_excluded_member_is_refilled_at_most_twice():
    world = start()
    world.go_online()
    lost = Member.objects.get(group__index=0, slot=1)
    for refill in (1, 2):
        world.fail_rollout(lost.rollout)
        world.round()
        world.round()
        lost = Member.objects.get(group__index=0, slot=1, refill=refill)
        assert lost.disposition == "pending"
    world.fail_rollout(lost.rollout)
    world.end_rollouts()
    world.round()
    group = Group.objects.get(index=0)
    assert (group.state, group.members.count()) == ("ready", 5)
    assert world.attempt.events.filter(kind="member_excluded").count() == 3
    world.run_until(is_over(world))
    assert world.attempt.state == "completed"


def test_a_group_that_cannot_be_trained_is_replaced_by_another():
    world = start()
    world.go_online()
    for member in Member.objects.filter(group__index=0, slot__in=(0, 1)):
        Member.objects.filter(pk=member.pk).update(include="drop")
    world.end_rollouts()
    world.round()
    assert Group.objects.get(index=0).state == "excluded"
    world.round()
    assert Group.objects.get(index=2).members.count() == 3
    world.run_until(is_over(world))
    assert world.attempt.step == 2


def test_a_held_member_blocks_its_group_until_it_is_judged():
    world = start(review_gate={"mode": "all"})
    world.go_online()
    world.end_rollouts()
    for _ in range(3):
        world.round()
    assert set(world.groups().values_list("state", flat=True)) == {"held"}
    assert "review" in world.attempt.phase
    for member in Member.objects.all():
        services.apply_judgement(
            rollout_id=member.rollout_id, reward=None, include=Member.Include.AS_SCORED, release_hold=True
        )
    world.round()
    assert set(world.groups().values_list("state", flat=True)) == {"ready"}
    assert world.attempt.cells.get().wanted_role == "trains"


def test_a_judgement_before_eating_changes_what_is_trained_and_afterwards_says_too_late():
    world = start()
    world.go_online()
    services.request(world.attempt_id, "pause")
    member = Member.objects.filter(group__index=0).first()
    assert member
    for rollout in world.unfinished():
        end_rollout(rollout.id, reward=0.0)
    world.round()
    assert Group.objects.get(index=0).no_signal
    judgement: dict[str, Any] = {
        "rollout_id": member.rollout_id,
        "include": Member.Include.AS_SCORED,
        "release_hold": False,
    }
    assert services.apply_judgement(reward=1.0, **judgement) == "trains"
    world.round()
    group = Group.objects.get(index=0)
    assert (group.state, group.no_signal) == ("ready", False)
    services.request(world.attempt_id, "run")
    world.run_until(lambda: OptimizerStep.objects.filter(state="done").exists())
    assert services.apply_judgement(reward=0.0, **judgement) == "too_late"
    member.refresh_from_db()
    assert member.reward == 1.0


def test_a_member_that_is_too_stale_is_excluded_where_the_run_says_so():
    world = start(schedule={"late_members": "exclude", "min_members": 2})
    world.go_online()
    world.end_rollouts()
    world.round()
    member = Member.objects.filter(group__index=0).first()
    assert member
    Rollout.objects.filter(pk=member.rollout_id).update(oldest_version=-1)
    world.run_until(lambda: OptimizerStep.objects.filter(state="done").exists())
    member.refresh_from_db()
    assert (member.disposition, member.staleness) == ("excluded", 1)
    assert "staleness 1" in member.reason


def test_where_the_run_waits_for_late_groups_no_step_overtakes_them():
    schedule = {"mode": "elastic", "staleness": 1, "lead_groups": 2, "late_members": "wait"}
    world = start(schedule=schedule, optimization={"steps": 4})
    world.go_online()
    world.round()
    assert world.groups().count() == 4
    late = list(world.unfinished().filter(member__group__index__lt=2))

    def others_end() -> None:
        for rollout in world.unfinished().exclude(id__in=[rollout.id for rollout in late]):
            end_rollout(rollout.id)
        world.round()
        world.cells()
        world.trainer()

    for _ in range(20):
        others_end()
    assert world.attempt.step == 1  # groups 2 and 3; another step would leave groups 0 and 1 two versions behind
    assert Group.objects.filter(state="ready").count() >= 2
    for rollout in late:
        end_rollout(rollout.id)
    world.run_until(is_over(world))
    assert [step.groups.first().index for step in OptimizerStep.objects.order_by("number")][:2] == [2, 0]


def test_an_evaluation_rollout_that_could_not_be_scored_is_done_again_and_then_counts_as_missing():
    world = start(evaluation={"tasks": 2})
    for _ in range(20):
        world.round()
        if unlucky := list(world.unfinished("evaluation")):
            break
        world.cells()
        world.trainer()
    task = unlucky[0].task_id
    end_rollout(unlucky[1].id)
    for _ in range(3):
        [again] = world.unfinished("evaluation")
        assert again.task_id == task
        world.fail_rollout(again)
        world.round()
    result = Version.objects.get(number=0).evaluation["heldout"]
    assert (result["state"], result["n"], result["solved"], result["missing"]) == ("done", 1, 1, 1)


def test_a_run_whose_demonstrations_all_failed_says_so():
    world = start(warm_start={"demonstrations": 4})
    world.round()
    for rollout in world.unfinished("demonstration"):
        end_rollout(rollout.id, reward=0.0)
    world.round()
    attempt = world.attempt
    assert attempt.state == "failed"
    assert "No demonstration" in attempt.state_reason


def test_a_failed_step_or_a_broken_cell_fails_the_attempt_with_its_reason():
    world = start()
    world.go_online()
    Cell.objects.update(role="down", reason="The engine ended five times.")
    world.round()
    assert world.attempt.state == "failed"
    assert "five times" in world.attempt.state_reason


def test_a_trouble_in_one_attempt_stops_no_other():
    broken = start()
    other = World(attempt_id=services.start_run(name="other", config=make_config()).id, controller=broken.controller)
    Attempt.objects.filter(pk=broken.attempt_id).update(config={"no": "config"})
    other.run_until(is_over(other))
    assert other.attempt.state == "completed"
    assert broken.attempt.state == "failed"


def test_a_cells_job_is_sent_while_nobody_holds_it_and_not_at_every_round():
    world = start()
    world.round()
    [cell] = Cell.objects.all()
    assert list(world.controller.jobs.sent) == [cell.id]
    first = world.controller.jobs.sent[cell.id]
    world.controller.jobs.send_missing()
    assert world.controller.jobs.sent[cell.id] == first
