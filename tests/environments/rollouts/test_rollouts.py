"""The life of a rollout with real sandboxes and plain commands as agents."""

import os
import signal
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from environments import leases, life, live
from environments.models import Rollout, Sandbox, Session
from environments.rollouts import request_cancel, requeue_lost_rollouts, run_rollout
from tests.environments.rollouts.conftest import drive
from tests.environments.rollouts.processes import Processes, wait_for

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def live_entries(rollout: Rollout) -> list[live.Entry]:
    return async_to_sync(live.read)(rollout.pk, None).entries


def start_thread(rollout: Rollout, stop: threading.Event, owner: str = "first") -> threading.Thread:
    thread = threading.Thread(target=run_rollout, args=(rollout.pk,), kwargs={"owner": owner, "stop": stop})
    thread.start()
    return thread


def state_of(rollout: Rollout) -> str:
    return Rollout.objects.values_list("state", flat=True).get(pk=rollout.pk)


def nothing_is_left(rollout: Rollout, data: Path) -> bool:
    rows = Sandbox.objects.filter(rollout=rollout)
    sandboxes = data / "sandboxes"
    return all(row.stopped_at for row in rows) and not (sandboxes.exists() and list(sandboxes.iterdir()))


def test_a_command_that_does_the_task_earns_the_reward_and_leaves_nothing(make_rollout, settings):
    rollout = drive(make_rollout("echo working; printf good > out.txt; rm start.txt"))
    assert (rollout.state, rollout.outcome, rollout.reward, rollout.exit_code) == ("ended", "completed", 1.0, 0)
    assert rollout.harness_output == "working\n"
    assert "+good" in rollout.diff
    assert "--- a/start.txt\n+++ /dev/null" in rollout.diff
    assert rollout.lease_expires_at is None
    assert Session.objects.get(rollout=rollout).finished_at is not None
    assert nothing_is_left(rollout, settings.DATA_DIR)


def test_its_states_and_its_terminal_are_in_the_live_log(make_rollout):
    rollout = drive(make_rollout("echo one; printf good > out.txt"))
    entries = live_entries(rollout)
    assert [entry.data["state"] for entry in entries if entry.kind == "state"] == [
        "starting",
        "running",
        "verifying",
        "ended",
    ]
    assert "".join(entry.data["text"] for entry in entries if entry.kind == "output") == "one\n"
    assert entries[-1].data["reward"] == 1.0


def test_work_that_is_wrong_earns_zero(make_rollout):
    rollout = drive(make_rollout("printf bad > out.txt"))
    assert (rollout.outcome, rollout.reward) == ("completed", 0.0)


def test_a_harness_that_crashes_is_graded_by_what_it_left(make_rollout):
    rollout = drive(make_rollout("printf good > out.txt; exit 3"))
    assert (rollout.outcome, rollout.reward, rollout.exit_code) == ("harness_crash", 1.0, 3)
    assert "exit code 3" in rollout.error


def test_the_wall_time_ends_a_harness_and_what_is_left_is_graded(make_rollout):
    rollout = drive(make_rollout("printf good > out.txt; sleep 60", wall_time_s=1.0))
    assert (rollout.outcome, rollout.reward) == ("harness_timeout", 1.0)


def test_the_idle_watchdog_ends_a_harness_that_does_nothing(make_rollout):
    rollout = drive(make_rollout("printf good > out.txt; sleep 60", idle_s=1.0))
    assert (rollout.outcome, rollout.reward) == ("idle", 1.0)
    assert "No model call" in rollout.error


def test_the_overall_time_ends_a_rollout_without_a_score(make_rollout, settings):
    rollout = drive(make_rollout("printf good > out.txt; sleep 60", overall_time_s=1.0))
    assert (rollout.outcome, rollout.reward) == ("overall_timeout", None)
    assert nothing_is_left(rollout, settings.DATA_DIR)


def test_the_gateways_ending_wins_over_the_exit_code(make_rollout):
    rollout = make_rollout("printf good > out.txt")
    Rollout.objects.filter(pk=rollout.pk).update(ending="budget_reached")
    drive(rollout)
    assert (rollout.outcome, rollout.reward) == ("budget_reached", 1.0)


def test_a_task_that_needs_an_image_is_refused_by_name(make_rollout):
    rollout = make_rollout()
    rollout.task.image = "127.0.0.1:9/debian:12"
    rollout.task.save()
    drive(rollout)
    assert (rollout.outcome, rollout.reward) == ("image_unavailable", None)
    assert "good-file" in rollout.error
    assert "debian:12" in rollout.error


def test_wrong_settings_end_a_rollout_with_every_field_named(make_rollout):
    rollout = make_rollout()
    rollout.harness.settings = {"comand": "x"}
    rollout.harness.save()
    drive(rollout)
    assert rollout.outcome == "sandbox_failed"
    assert "comand" in rollout.error
    assert "command: Field required" in rollout.error


def test_a_cancelled_rollout_is_not_scored(make_rollout, settings):
    rollout = make_rollout("printf good > out.txt; sleep 60")
    thread = start_thread(rollout, threading.Event())
    wait_for(lambda: state_of(rollout) == "running")
    request_cancel(rollout.pk)
    thread.join(20)
    rollout.refresh_from_db()
    assert (rollout.state, rollout.outcome, rollout.reward) == ("ended", "cancelled", None)
    assert nothing_is_left(rollout, settings.DATA_DIR)


def test_a_queued_rollout_is_cancelled_at_once(make_rollout):
    rollout = make_rollout()
    request_cancel(rollout.pk)
    rollout.refresh_from_db()
    assert (rollout.state, rollout.outcome) == ("ended", "cancelled")


def test_stop_leaves_the_harness_running_and_the_next_driver_goes_on(make_rollout, settings):
    rollout = make_rollout("echo first; while [ ! -e go ]; do sleep 0.05; done; printf good > out.txt; echo second")
    stop = threading.Event()
    thread = start_thread(rollout, stop)
    wait_for(lambda: any(entry.kind == "output" for entry in live_entries(rollout)))
    stop.set()
    thread.join(5)
    rollout.refresh_from_db()
    assert (rollout.state, rollout.lease_expires_at) == ("running", None)
    sandbox = Sandbox.objects.get(rollout=rollout)
    Path(sandbox.directory, "work", "go").touch()
    drive(rollout, owner="second")
    assert (rollout.outcome, rollout.reward, rollout.lease_epoch) == ("completed", 1.0, 2)
    assert Sandbox.objects.filter(rollout=rollout, purpose="agent").count() == 1
    texts = [entry.data["text"] for entry in live_entries(rollout) if entry.kind == "output"]
    assert "".join(texts) == rollout.harness_output == "first\nsecond\n"


def test_a_driver_that_lost_its_lease_changes_nothing(make_rollout):
    rollout = make_rollout("while [ ! -e go ]; do sleep 0.05; done; printf good > out.txt")
    thread = start_thread(rollout, threading.Event())
    wait_for(lambda: state_of(rollout) == "running")
    Rollout.objects.filter(pk=rollout.pk).update(lease_owner="thief", lease_epoch=7)
    thread.join(10)
    assert not thread.is_alive()
    rollout.refresh_from_db()
    assert (rollout.state, rollout.lease_owner) == ("running", "thief")
    Rollout.objects.filter(pk=rollout.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    Path(Sandbox.objects.get(rollout=rollout).directory, "work", "go").touch()
    assert drive(rollout).reward == 1.0


def test_a_second_delivery_finds_the_lease_taken_and_goes_home(make_rollout):
    rollout = make_rollout()
    assert leases.take(rollout.pk, "first") is not None
    drive(rollout, owner="second")
    assert (rollout.state, rollout.lease_owner) == ("queued", "first")


SLOW_TEST = (
    "while [ ! -e /work/slow ] && [ $((i = i + 1)) -lt 30 ]; do sleep 0.1; done; echo 1 > /logs/verifier/reward.txt"
)


def test_grading_that_was_interrupted_is_done_again_by_the_next_driver(make_rollout, settings):
    rollout = make_rollout("printf good > out.txt", test=SLOW_TEST)
    stop = threading.Event()
    thread = start_thread(rollout, stop)
    wait_for(lambda: Sandbox.objects.filter(rollout=rollout, purpose="verifier").exists())
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert state_of(rollout) == "verifying"
    Path(Sandbox.objects.get(rollout=rollout, purpose="agent").directory, "work", "slow").touch()
    drive(rollout, owner="second")
    assert (rollout.outcome, rollout.reward) == ("completed", 1.0)
    assert nothing_is_left(rollout, settings.DATA_DIR)


def test_a_worker_killed_while_it_grades_leaves_nothing_that_the_next_does_not_clear(make_rollout, settings, tmp_path):
    rollout = make_rollout("printf good > out.txt", test=SLOW_TEST)
    processes = Processes(tmp_path)
    worker = processes.start_worker(rollout.pk)
    wait_for(lambda: Sandbox.objects.filter(rollout=rollout, purpose="verifier").exclude(handle={}).exists())
    processes.stop()
    assert worker.returncode == -signal.SIGKILL
    Rollout.objects.filter(pk=rollout.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    drive(rollout, owner="second")
    assert (rollout.outcome, rollout.reward, rollout.lease_epoch) == ("completed", 1.0, 2)
    assert nothing_is_left(rollout, settings.DATA_DIR)


def test_a_rollout_is_cancelled_while_it_is_graded(make_rollout, settings):
    rollout = make_rollout("printf good > out.txt", test=SLOW_TEST)
    thread = start_thread(rollout, threading.Event())
    wait_for(lambda: state_of(rollout) == "verifying")
    request_cancel(rollout.pk)
    thread.join(10)
    rollout.refresh_from_db()
    assert (rollout.outcome, rollout.reward) == ("cancelled", None)
    assert nothing_is_left(rollout, settings.DATA_DIR)


def test_a_lease_is_renewed_for_as_long_as_its_driver_polls(make_rollout, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_S", 0.2)
    rollout = make_rollout("while [ ! -e go ]; do sleep 0.05; done")
    stop = threading.Event()
    thread = start_thread(rollout, stop)
    wait_for(lambda: state_of(rollout) == "running")
    first = Rollout.objects.get(pk=rollout.pk).lease_expires_at
    wait_for(lambda: Rollout.objects.get(pk=rollout.pk).lease_expires_at > first + timedelta(seconds=0.5))
    stop.set()
    thread.join(5)


def test_a_task_whose_directory_is_gone_is_named(make_rollout):
    rollout = make_rollout()
    rollout.task.directory = "/nowhere"
    rollout.task.save()
    drive(rollout)
    assert rollout.outcome == "sandbox_failed"
    assert "/nowhere" in rollout.error


def test_sixteen_rollouts_at_once_share_one_process(make_rollout, settings):
    rollouts = [make_rollout(f"sleep 0.{number % 5}; printf good > out.txt") for number in range(16)]
    threads = [start_thread(rollout, threading.Event(), owner="one") for rollout in rollouts]
    for thread in threads:
        thread.join(60)
    assert set(Rollout.objects.values_list("outcome", "reward")) == {("completed", 1.0)}
    assert all(nothing_is_left(rollout, settings.DATA_DIR) for rollout in rollouts)


def test_a_sandbox_that_is_lost_before_any_call_is_replaced(make_rollout):
    rollout = make_rollout("[ -e /work/start.txt ] && printf good > out.txt; while [ ! -e go ]; do sleep 0.05; done")
    thread = start_thread(rollout, threading.Event())
    wait_for(lambda: state_of(rollout) == "running")
    first = Sandbox.objects.get(rollout=rollout)
    os.kill(first.handle["pid"], signal.SIGKILL)
    wait_for(lambda: Sandbox.objects.filter(rollout=rollout).count() == 2 and state_of(rollout) == "running")
    second = Sandbox.objects.filter(rollout=rollout).order_by("created_at").last()
    assert second is not None
    Path(second.directory, "work", "go").touch()
    thread.join(20)
    rollout.refresh_from_db()
    assert (rollout.outcome, rollout.reward, rollout.setup_failures) == ("completed", 1.0, 1)


def test_a_sandbox_that_is_lost_after_calls_excludes_a_rollout_that_cannot_be_replayed(make_rollout, monkeypatch):
    monkeypatch.setattr(life, "not_replayable", lambda program: "it asks the clock.")
    rollout = make_rollout("sleep 60")
    Rollout.objects.filter(pk=rollout.pk).update(state="running", num_calls=1, started_at=timezone.now())
    drive(rollout)
    assert (rollout.outcome, rollout.reward) == ("lost", None)
    assert "it asks the clock" in rollout.error


def test_only_what_nobody_drives_and_nothing_queues_is_enqueued_again(make_rollout, monkeypatch):
    enqueued: list[str] = []
    monkeypatch.setattr("environments.jobs.run_rollout.delay", enqueued.append)
    lost, led, ended = (make_rollout() for _ in range(3))
    Rollout.objects.update(created_at=timezone.now() - timedelta(seconds=10))
    leases.take(led.pk, "driver")
    Rollout.objects.filter(pk=ended.pk).update(state="ended")
    assert requeue_lost_rollouts() == 1
    assert requeue_lost_rollouts() == 0
    assert enqueued == [str(lost.pk)]


def test_planted_rewards_and_edited_tests_are_flagged(make_rollout):
    rollout = drive(make_rollout("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"))
    assert rollout.reward == 0.0
    assert [flag["kind"] for flag in rollout.flags] == ["reward_planted"]


def test_a_sandbox_that_a_killed_driver_could_not_note_is_the_reapers_when_the_rollout_ends(make_rollout, settings):
    rollout = make_rollout("printf good > out.txt")
    unnoted = Sandbox.objects.create(
        rollout=rollout,
        purpose=Sandbox.Purpose.VERIFIER,
        host=socket.gethostname(),
        directory=str(settings.DATA_DIR / "sandboxes" / "unnoted"),
        lease_expires_at=timezone.now() + timedelta(minutes=5),
    )
    assert drive(rollout).reward == 1.0
    unnoted.refresh_from_db()
    assert unnoted.lease_expires_at <= timezone.now()


def test_a_rollout_that_ended_gets_no_new_lease(make_rollout):
    lease = leases.take(make_rollout().pk, "driver")
    assert lease is not None
    watch = leases.Watch()
    watch.look(lease)
    leases.update(lease, state=Rollout.State.ENDED, lease_expires_at=None)
    watch._looked_at = watch._renewed_at = 0.0  # the next look is due, and so is a renewal
    watch.look(lease)
    assert Rollout.objects.get(pk=lease.rollout_id).lease_expires_at is None
