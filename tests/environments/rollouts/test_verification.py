"""A reward is believed only where it can be; a verifier's error is never a zero."""

import os
from pathlib import Path

import pytest

from environments.verification import MAX_REWARD_BYTES, VerifierError, read_reward
from tests.environments.rollouts.conftest import drive


def logs_with(root: Path, **files: str) -> Path:
    (root / "verifier").mkdir()
    for name, text in files.items():
        (root / "verifier" / name.replace("_", ".")).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "reward", "parts"),
    [
        ({"reward_txt": "0.5\n"}, 0.5, {}),
        ({"reward_json": "1"}, 1.0, {}),
        ({"reward_json": '{"reward": 0.25, "speed": 3, "name": "x"}'}, 0.25, {"speed": 3.0}),
        ({"reward_json": "0.75", "reward_txt": "0"}, 0.75, {}),
        ({"reward_txt": "-1"}, -1.0, {}),
    ],
)
def test_numbers_and_objects_are_read(tmp_path, files, reward, parts):
    assert read_reward(logs_with(tmp_path, **files)) == (reward, parts)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither"),
        ({"reward_txt": ""}, "finite number"),
        ({"reward_txt": "nan"}, "finite number"),
        ({"reward_txt": "inf"}, "finite number"),
        ({"reward_json": "{"}, "not JSON"),
        ({"reward_json": "{}"}, "no field `reward`"),
        ({"reward_json": "true"}, "finite number"),
        ({"reward_json": "[" * 100_000}, "not JSON"),
        ({"reward_txt": "1" * (MAX_REWARD_BYTES + 1)}, "larger than 1 MiB"),
    ],
)
def test_what_is_no_reward_is_an_error(tmp_path, files, message):
    with pytest.raises(VerifierError, match=message):
        read_reward(logs_with(tmp_path, **files))


def test_a_link_a_hard_link_and_a_pipe_are_not_followed(tmp_path):
    logs = logs_with(tmp_path)
    (tmp_path / "secret").write_text("1")
    reward = logs / "verifier" / "reward.txt"
    reward.symlink_to(tmp_path / "secret")
    with pytest.raises(VerifierError, match="link"):
        read_reward(logs)
    reward.unlink()
    reward.hardlink_to(tmp_path / "secret")
    with pytest.raises(VerifierError, match="of its own"):
        read_reward(logs)
    reward.unlink()
    os.mkfifo(reward)
    with pytest.raises(VerifierError, match="plain"):
        read_reward(logs)


def test_a_linked_directory_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "reward.txt").write_text("1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "verifier").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VerifierError, match="no directory"):
        read_reward(tmp_path / "logs")


@pytest.mark.sandbox
def test_a_verifier_without_a_reward_is_tried_again_and_then_excluded(make_rollout):
    rollout = drive(make_rollout(test="echo looking; exit 1\n"))
    assert (rollout.outcome, rollout.reward, rollout.verifier_trials) == ("verifier_error", None, 3)
    assert "after 3 trials" in rollout.error
    assert rollout.verifier_log == "looking\n"


@pytest.mark.sandbox
def test_a_verifier_that_hangs_is_ended_at_its_deadline(make_rollout):
    rollout = drive(make_rollout(test="sleep 60\n", toml="[verifier]\ntimeout_sec = 1\n"))
    assert (rollout.outcome, rollout.reward, rollout.verifier_trials) == ("verifier_error", None, 1)
    assert "did not end in time" in rollout.error


@pytest.mark.sandbox
def test_the_tests_cannot_be_changed_and_were_never_in_the_agents_sandbox(make_rollout):
    test = "#!/bin/bash\ntouch /tests/x && echo writable; echo 1 > /logs/verifier/reward.txt\n"
    rollout = drive(make_rollout("ls /tests > out.txt 2>&1; true", test=test))
    assert rollout.reward == 1.0
    assert "writable" not in rollout.verifier_log
    assert "No such file" in rollout.diff


@pytest.mark.sandbox
def test_the_verifier_gets_the_tasks_own_environment(make_rollout):
    toml = '[verifier.env]\nWANTED = "0.5"\n'
    rollout = drive(make_rollout(test="echo $WANTED > /logs/verifier/reward.txt\n", toml=toml))
    assert rollout.reward == 0.5


@pytest.mark.sandbox
def test_processes_of_the_agent_are_gone_before_it_is_graded(make_rollout):
    command = "(sleep 0.3; printf good > out.txt) >/dev/null 2>&1 & printf bad > out.txt"
    assert drive(make_rollout(command)).reward == 0.0
