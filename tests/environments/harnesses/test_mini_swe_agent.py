"""The real mini-swe-agent in a real sandbox, its model scripted at the end of the wire."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from environments.harnesses import HARNESSES, Assignment, InvalidHarness, check_settings, ensure_builtin_harness
from environments.harnesses.mini_swe_agent import MiniSettings, build_config
from environments.models import Harness, Rollout
from tests.environments.harnesses.scripted_wire import Answer, ScriptedWire
from tests.environments.rollouts.conftest import MakeRollout, drive, write_tasks

WRITE = "```bash\nprintf good > out.txt; echo done\n```"
SUBMIT = "```bash\nsubmit\n```"


@pytest.fixture
def wires(settings: Any, tmp_path: Path) -> Iterator[Any]:
    settings.GATEWAY_SOCKET_DIR = tmp_path / "g"
    opened: list[ScriptedWire] = []

    def open_wire(*answers: Answer) -> ScriptedWire:
        opened.append(ScriptedWire(tmp_path / "g", list(answers)))
        return opened[-1]

    yield open_wire
    for wire in opened:
        wire.close()


def mini(make: MakeRollout, **settings: Any) -> Rollout:
    rollout = make()
    rollout.harness = Harness.objects.create(
        name=f"mini-{Harness.objects.count()}", program="mini-swe-agent", version="2.4.6", settings=settings
    )
    rollout.save()
    return rollout


def is_extension(longer: list[Any], shorter: list[Any]) -> bool:
    return len(longer) > len(shorter) and longer[: len(shorter)] == shorter


@pytest.mark.harness
@pytest.mark.sandbox
class TestInASandbox:
    def test_it_works_submits_and_each_request_extends_the_one_before(self, make_rollout, wires):
        wire = wires(WRITE, SUBMIT)
        rollout = drive(mini(make_rollout))
        assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")
        first, second = (body["messages"] for body in wire.bodies)
        assert [message["role"] for message in first] == ["system", "user"]
        assert first[1]["content"] == "Write good to out.txt."
        assert second[2:] == [
            {"role": "assistant", "content": WRITE},
            {"role": "user", "content": "exit 0\ndone"},
        ]
        assert is_extension(second, first)
        assert wire.paths[0] == f"/s/{rollout.sessions.get().key}/v1/chat/completions"
        assert "done" in rollout.harness_output
        assert "exit status: Submitted" in rollout.harness_output

    def test_an_answer_without_an_action_stays_in_the_history(self, make_rollout, wires):
        wire = wires("I do not know.", WRITE, SUBMIT)
        rollout = drive(mini(make_rollout, format_error="One block, please."))
        assert rollout.reward == 1.0
        assert wire.bodies[1]["messages"][2:] == [
            {"role": "assistant", "content": "I do not know."},
            {"role": "user", "content": "One block, please."},
        ]
        for shorter, longer in zip(wire.bodies, wire.bodies[1:], strict=False):
            assert is_extension(longer["messages"], shorter["messages"])

    def test_it_gives_up_after_so_many_format_errors(self, make_rollout, wires):
        wire = wires("No.")
        rollout = drive(mini(make_rollout, max_format_errors=2))
        assert (rollout.outcome, rollout.reward, len(wire.bodies)) == ("completed", 0.0, 2)

    def test_long_output_is_cut_in_the_middle(self, make_rollout, wires):
        wire = wires("```bash\nprintf abcdefghijklmnopqrstuvwxyz\n```", SUBMIT)
        drive(mini(make_rollout, max_output_chars=20))
        assert wire.bodies[1]["messages"][3]["content"] == "exit 0\nabcdefghij\n[cut]\nqrstuvwxyz"

    def test_a_refused_call_ends_it_with_the_gateways_words(self, make_rollout, wires):
        error = {"error": {"code": "context_length_exceeded", "message": "too long"}}
        wires((400, error))
        rollout = drive(mini(make_rollout))
        assert (rollout.outcome, rollout.exit_code) == ("harness_crash", 1)
        assert "context_length_exceeded" in rollout.error

    def test_its_commands_see_neither_the_key_nor_the_programs_packages(self, make_rollout, wires):
        command = "echo [$OPENAI_API_KEY$OPENAI_BASE_URL$PYTHONPATH]; python3 -c 'import minisweagent'"
        wire = wires(f"```bash\n{command}\n```", SUBMIT)
        drive(mini(make_rollout))
        seen = wire.bodies[1]["messages"][3]["content"]
        assert "\n[]\n" in seen
        assert "ModuleNotFoundError" in seen

    @pytest.mark.parametrize("entry", ["bindings", "cli"])
    def test_a_tasks_files_are_not_its_standard_library(self, make_rollout, wires, tmp_path, entry):
        write_tasks(
            tmp_path, work={f"{name}.py": "raise ImportError('of the task')" for name in ("numbers", "json", "yaml")}
        )
        wires(WRITE, SUBMIT)
        rollout = drive(mini(make_rollout, entry=entry))
        assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")

    def test_its_own_command_line_works_too(self, make_rollout, wires):
        wire = wires(WRITE, SUBMIT)
        rollout = drive(mini(make_rollout, entry="cli"))
        assert (rollout.outcome, rollout.reward, len(wire.bodies)) == ("completed", 1.0, 2)

    @pytest.mark.slow
    def test_its_own_litellm_class_works_too(self, make_rollout, wires):
        wire = wires(WRITE, SUBMIT)
        rollout = drive(mini(make_rollout, entry="cli", model_class="litellm"))
        assert (rollout.outcome, rollout.reward, rollout.error) == ("completed", 1.0, "")
        assert is_extension(wire.bodies[1]["messages"], wire.bodies[0]["messages"])


def test_a_harness_pinned_to_another_version_is_refused(make_rollout):
    rollout = mini(make_rollout)
    Harness.objects.filter(pk=rollout.harness.pk).update(version="2.0.0")
    drive(rollout)
    assert rollout.outcome == "sandbox_failed"
    assert "2.0.0" in rollout.error
    assert "2.4.6 is installed" in rollout.error


def test_braces_of_a_prompt_reach_the_model_as_they_are():
    config = build_config(MiniSettings(system_prompt="Use {{x}} and {% y %}."))
    from jinja2 import Template

    assert Template(config["agent"]["system_template"]).render() == "Use {{x}} and {% y %}."


def test_the_config_holds_nothing_that_differs_between_two_starts():
    program = HARNESSES["mini-swe-agent"]
    first, second = (
        program.prepare(Assignment(instruction="x", session_key=key), MiniSettings()) for key in ("one", "two")
    )
    assert first.files == second.files
    assert yaml.safe_load(first.files["config.yaml"])["model"]["model_class"] == "gyre_mini_model.ChatModel"
    assert first.command == second.command


def test_wrong_settings_are_all_named():
    with pytest.raises(InvalidHarness) as caught:
        check_settings("mini-swe-agent", {"step_limit": -1, "wrong": 1, "entry": "x"})
    assert {field for field, _ in caught.value.problems} == {"step_limit", "wrong", "entry"}


def test_an_unknown_program_is_refused_with_the_known_ones():
    with pytest.raises(InvalidHarness, match=r"known: mini-swe-agent, .*command"):
        check_settings("nano", {})


@pytest.mark.django_db
def test_the_built_in_harness_is_added_once():
    harness = ensure_builtin_harness()
    assert ensure_builtin_harness() == harness
    assert harness.version == "2.4.6"
