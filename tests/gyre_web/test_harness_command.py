"""`manage.py harness`: what it prints, and its exit status."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from environments.harnesses import HARNESSES
from gyre_web.management.commands.harness import chosen, row, table

REPORT = {
    "harness": "pi/chat", "is_well": False, "outcome": "harness_crash", "reward": None, "error": "pi stopped: 500 no",
    "calls": [{"dialect": "chat"}, {"dialect": "chat"}], "num_roots": 1, "num_branches": 2, "roles": {"main": 1},
    "differences": {"edit": 1, "arguments": 2}, "wall_s": 1.25,
}  # fmt: skip


def test_a_row_says_what_was_seen_and_why_it_is_not_well():
    assert row(REPORT) == [
        "pi/chat", "NO", "harness_crash (pi stopped: 500 no)", "-", "chat", "2", "1", "2", "main 1",
        "arguments 2 edit 1", "1.2",
    ]  # fmt: skip


def test_the_table_is_aligned_under_its_heads():
    head, line = table([row(REPORT)]).splitlines()
    assert head.index("outcome") == line.index("harness_crash")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(CommandError, match=r"mini-swe-agent.*not nano"):
        chosen(["nano"], everything=False)


def test_all_are_all_but_the_users_own_command():
    assert chosen([], everything=True) == [name for name in HARNESSES if name != "command"]


def test_the_list_names_version_dialect_and_licence():
    out = io.StringIO()
    call_command("harness", "list", stdout=out)
    assert "pi  0.73.1  chat/responses/messages  MIT" in out.getvalue()


@pytest.mark.harness
@pytest.mark.sandbox
@pytest.mark.slow
def test_a_check_runs_the_real_program_and_reports_in_json(transactional_db, settings, tmp_path):
    settings.DATA_DIR = tmp_path
    tmp_path.chmod(0o755)
    out = io.StringIO()
    call_command("harness", "check", "mini-swe-agent-tools", "--json", stdout=out)
    report = json.loads(out.getvalue())["reports"][0]
    assert (report["outcome"], report["reward"], report["is_well"]) == ("completed", 1.0, True)
    assert [(call["dialect"], call["role"]) for call in report["calls"]] == [("chat", "main")] * 3
    assert (report["num_roots"], report["num_branches"], report["differences"]) == (1, 1, {})
