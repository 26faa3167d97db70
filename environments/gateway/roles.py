"""What a branch is for: main, a summary, a sub-agent, or a side call. Generic rule; harness programs may refine it.

From:  a request and where it hangs in the tree.
To:    Node.BranchRole values.
"""

import re

from environments.gateway.messages import Request, text_of
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
    request: Request, *, parent_role: str | None, instruction: str, main_exists: bool, main_system: str
) -> str:
    """Role of the nodes that this request adds. parent_role: of the node it continues, None for a new root."""
    asks_for_summary = SUMMARY.search(last_user_text(request)) is not None
    if parent_role is not None:
        return SUMMARY_OF.get(Role(parent_role), Role(parent_role)) if asks_for_summary else parent_role
    system = system_text(request)
    if TITLE.search(system):
        return Role.SIDE
    if SUMMARY.search(system) or (asks_for_summary and not request.tools):
        return Role.MAIN_SUMMARY if main_exists else Role.SIDE
    if carries_instruction(request, instruction) or (main_exists and system and system == main_system):
        return Role.MAIN
    if request.tools:
        return Role.SUB_AGENT if main_exists else Role.MAIN
    return Role.SIDE if main_exists else Role.MAIN


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
