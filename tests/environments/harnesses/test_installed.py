"""Programs from registries: what they are told, and how their ends are read."""

import json
import subprocess
from pathlib import Path

import pytest

from environments.harnesses import HARNESSES, PROGRAMS, Assignment, check_settings
from environments.harnesses.base import HarnessMissing
from environments.harnesses.bundles import Bundle, Libc
from environments.harnesses.installed import START, InstalledProgram, find_native
from environments.models import Outcome

INSTALLED = [program for program in PROGRAMS if isinstance(program, InstalledProgram)]
LOGS = Path("/nonexistent")


@pytest.mark.parametrize("program", INSTALLED, ids=lambda program: program.name)
def test_its_files_are_the_same_for_every_session(program):
    settings = check_settings(program.name, {})
    text = json.dumps(program.home_files(settings))
    assert "127.0.0.1" not in text
    assert program.version() == program.recipe.version


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_its_launch_line_names_the_instruction_and_no_key(program):
    settings = check_settings(program.name, {"command": 'me "$GYRE_INSTRUCTION"'} if program.name == "command" else {})
    line = program.launch_line(settings)
    assert "INSTRUCTION" in line
    assert "KEY" not in line


def test_further_arguments_stand_before_the_instruction_and_its_separator():
    program = HARNESSES["codex"]
    assert isinstance(program, InstalledProgram)
    settings = check_settings("codex", {"extra_arguments": ["--color", "never"]})
    words = program._placed(Assignment(instruction="do it", session_key="k"), settings)  # type: ignore[arg-type]
    assert words[-4:] == ["--color", "never", "--", "do it"]


def test_the_start_script_writes_address_and_key_into_the_private_home(tmp_path):
    prepared, home = tmp_path / "harness" / "home", tmp_path / "agent"
    (prepared / ".x").mkdir(parents=True)
    home.mkdir()
    (prepared / ".x" / "config").write_text("url = @BASE_URL@/v1\nkey = @SESSION_KEY@\n")
    script = tmp_path / "start"
    script.write_text(START.replace("/gyre/harness", str(tmp_path / "harness")))
    environment = {
        "HOME": str(home),
        "GYRE_BASE_URL": "http://h:1/s/k",
        "GYRE_SESSION_KEY": "k",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        ["sh", str(script), "echo", "two words"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "two words\n"
    assert (home / ".x" / "config").read_text() == "url = http://h:1/s/k/v1\nkey = k\n"


def test_a_program_for_another_processor_is_said_to_be_missing(tmp_path):
    with pytest.raises(HarnessMissing, match="codex brings no executable"):
        find_native("codex", tmp_path, ["node_modules/x-{machine}/codex"])


def test_the_build_for_this_processor_is_found_in_the_bundle(tmp_path, monkeypatch):
    (tmp_path / "node_modules" / "x-x64").mkdir(parents=True)
    (tmp_path / "node_modules" / "x-x64" / "codex").touch()
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = find_native("codex", tmp_path, ["node_modules/x-{machine}/codex"])
    assert found == "/gyre/bundle/node_modules/x-x64/codex"


@pytest.mark.parametrize(
    ("program", "exit_code", "output", "outcome", "detail"),
    [
        ("codex", 0, '{"type":"turn.completed"}', "completed", ""),
        (
            "codex",
            1,
            '{"type":"turn.failed","error":{"message":"ran out of room"}}',
            "harness_crash",
            "ran out of room",
        ),
        (
            "claude-code",
            1,
            '{"type":"result","is_error":true,"result":"Prompt is too long"}',
            "harness_crash",
            "too long",
        ),
        ("claude-code", 0, '{"type":"result","is_error":false,"result":"done"}', "completed", ""),
        (
            "pi",
            0,
            '{"type":"message_end","message":{"role":"assistant","stopReason":"error","errorMessage":"500 no"}}',
            "harness_crash",
            "500 no",
        ),
        ("pi", 0, '{"type":"message_end","message":{"role":"assistant","stopReason":"stop"}}', "completed", ""),
        (
            "pi",
            0,
            '{"type":"message_end","message":{"role":"assistant","stopReason":"error"}}\n{"type":"compaction_start"}',
            "completed",
            "",
        ),
        ("aider", 0, "litellm.BadRequestError: no", "harness_crash", "BadRequestError"),
        ("qwen-code", 1, "[API Error: terminated]", "harness_crash", "terminated"),
        ("gemini-cli", 41, "no key", "harness_crash", "exit code 41: no key"),
    ],
)
def test_an_end_is_read_from_what_the_program_says_not_only_from_its_exit_code(
    program, exit_code, output, outcome, detail
):
    end = HARNESSES[program].read_end(exit_code, output, LOGS)
    assert end.outcome == Outcome(outcome)
    assert detail in end.detail


def test_claude_codes_turn_limit_is_an_end_like_any_other():
    output = '{"type":"result","is_error":true,"subtype":"error_max_turns"}'
    assert HARNESSES["claude-code"].read_end(0, output, LOGS).outcome == Outcome.COMPLETED


def test_pi_is_pointed_at_the_dialect_it_is_told():
    program = HARNESSES["pi"]
    assert isinstance(program, InstalledProgram)
    for dialect, api, path in (("chat", "openai-completions", "/v1"), ("messages", "anthropic-messages", "")):
        text = program.home_files(check_settings("pi", {"dialect": dialect}))[".pi/agent/models.json"]
        provider = json.loads(text)["providers"]["gyre"]
        assert (provider["api"], provider["baseUrl"]) == (api, f"@BASE_URL@{path}")


def test_a_prepared_program_mounts_its_bundle_and_starts_through_the_start_script(tmp_path, monkeypatch):
    bundle = Bundle(name="pi", version="1", libc=Libc.GLIBC, path=tmp_path, mounts=())
    monkeypatch.setattr("environments.harnesses.installed.require", lambda recipe: bundle)
    one, two = (
        HARNESSES["pi"].prepare(Assignment(instruction="do it", session_key=key), check_settings("pi", {}))
        for key in ("one", "two")
    )
    assert one.files == two.files
    assert one.command[0] == "/gyre/harness/start"
    assert one.command[-1] == "do it"
    assert one.environment["GYRE_BASE_URL"].endswith("/s/one")
