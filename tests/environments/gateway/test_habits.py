"""What a harness's habits tell the gateway: what a request is for."""

from typing import Any

import pytest

from environments.gateway.messages import Request
from environments.gateway.roles import find_role
from environments.harnesses import HARNESSES

TOOLS = [{"type": "function", "function": {"name": "bash"}}]


def request(system: str, user: str, *, tools: bool = True, agent: str = "") -> Request:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return Request(
        dialect="chat",
        messages=messages,
        tools=TOOLS if tools else [],
        stream=True,
        requested={},
        unknown={},
        agent=agent,
    )


def role_of(asked: Request, program: str, **given: Any) -> str:
    known = {"parent_role": None, "instruction": "Do the work.", "main_exists": True, "main_system": "You are it."}
    return find_role(asked, rules=HARNESSES[program].habits.roles, **(known | given))


@pytest.mark.parametrize(
    ("program", "system", "tools", "wanted"),
    [
        ("opencode", "You are a title generator. Be short.", False, "side"),
        ("opencode", "You are a context summarization agent.", False, "main-summary"),
        ("qwen-code", "You are the component that summarizes internal chat history.", False, "main-summary"),
        ("qwen-code", "You are now acting as the managed memory extraction subagent.", True, "side"),
        ("pi", "You are a context summarization assistant.", False, "main-summary"),
        ("qwen-code", "You are a helper for research.", True, "sub-agent"),
    ],
)
def test_a_root_is_known_by_what_its_program_says_in_it(program, system, tools, wanted):
    assert role_of(request(system, "Go on.", tools=tools), program) == wanted


def test_a_continued_branch_that_asks_for_a_summary_is_a_summary():
    asked = request("You are it.", "You are performing a CONTEXT CHECKPOINT COMPACTION.", tools=False)
    assert role_of(asked, "codex", parent_role="main") == "main-summary"
    assert role_of(asked, "codex", parent_role="sub-agent") == "sub-summary"


def test_a_root_of_a_named_agent_is_a_sub_agent_although_it_carries_the_instruction():
    assert role_of(request("You help.", "Do the work.", agent="a1"), "claude-code") == "sub-agent"
    assert role_of(request("You are it.", "Do the work."), "claude-code", main_exists=False) == "main"
