"""What a branch is for: main, a summary, a sub-agent, or a side call. Generic rule; harness programs may refine it.

From:  a request and where it hangs in the tree.
To:    Node.BranchRole values.
"""

import re
from collections.abc import Sequence
from functools import cache

from environments.gateway.messages import Request, text_of
from environments.harnesses.base import RoleRule
from environments.models.node import Node

Role = Node.BranchRole
TITLE = re.compile(
    r"title generator|generate a (short|concise|brief)?[^.\n]{0,40}title|write a[^.\n]{0,30} title", re.I
)
SUMMARY = re.compile(
    r"context checkpoint compaction|context summarization|summari[sz]e (the|this|our) (conversation|session|history)"
    r"|create a (detailed )?(handoff )?summary|respond with text only",
    re.I,
)
INSTRUCTION_CHARS = 160
"""Enough of the task's instruction to recognise it inside a harness's own template."""
SUMMARY_OF = {Role.MAIN: Role.MAIN_SUMMARY, Role.SUB_AGENT: Role.SUB_SUMMARY}


def find_role(
    request: Request,
    *,
    parent_role: str | None,
    instruction: str,
    main_exists: bool,
    main_system: str,
    rules: Sequence[RoleRule] = (),
) -> str:
    """Role of the nodes that this request adds. parent_role: of the node it continues, None for a new root."""
    system = system_text(request)
    rule = find_rule(rules, system, last_user_text(request))
    asks_for_summary = SUMMARY.search(last_user_text(request)) is not None or (rule is not None and bool(rule.asked))
    if parent_role is not None:
        return SUMMARY_OF.get(Role(parent_role), Role(parent_role)) if asks_for_summary else parent_role
    if rule is not None:
        of_agent = request.agent and rule.role == "main-summary"
        return Role.SUB_SUMMARY if of_agent else rule.role
    if request.agent:
        return Role.SUB_AGENT
    if TITLE.search(system):
        return Role.SIDE
    if SUMMARY.search(system) or (asks_for_summary and not request.tools):
        return Role.MAIN_SUMMARY if main_exists else Role.SIDE
    if carries_instruction(request, instruction) or (main_exists and system and system == main_system):
        return Role.MAIN
    if request.tools:
        return Role.SUB_AGENT if main_exists else Role.MAIN
    return Role.SIDE if main_exists else Role.MAIN


def find_rule(rules: Sequence[RoleRule], system: str, asked: str) -> RoleRule | None:
    return next((rule for rule in rules if _matches(rule.system, system) and _matches(rule.asked, asked)), None)


def _matches(pattern: str, text: str) -> bool:
    return not pattern or _compiled(pattern).search(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.I)


def carries_instruction(request: Request, instruction: str) -> bool:
    wanted = squeeze(instruction)[:INSTRUCTION_CHARS]
    return bool(wanted) and any(
        wanted in squeeze(text_of(message["content"]))
        for message in request.messages
        if message["role"] in ("user", "system")
    )


def system_text(request: Request) -> str:
    return "\n".join(text_of(m["content"]) for m in request.messages if m["role"] == "system")


def last_user_text(request: Request) -> str:
    last = request.messages[-1]
    return text_of(last["content"]) if last["role"] == "user" else ""


def squeeze(text: str) -> str:
    return " ".join(text.split())
