"""What clients say of themselves in headers: which sub-agent asks, and whether this is a retry.

From:  dialects, with a request's headers (names in lower case).
To:    Request.agent, Request.is_retry.
Holds: an agent's name is stable over its conversation; the main agent has none.

Seen by running the programs (docs/guides/harnesses.md): sub-agents of one program send byte-identical bodies that are
new samples, and only a header tells them apart; retries are marked by few.
"""

from collections.abc import Mapping

AGENT_HEADERS = ("x-gyre-agent", "x-claude-code-agent-id")
CHILD_HEADERS = (("x-openai-subagent", "thread-id"), ("x-parent-session-id", "x-session-id"))
"""(header that only a child's requests carry, header with the child's id)."""


def read_agent(headers: Mapping[str, str]) -> str:
    for name in AGENT_HEADERS:
        if headers.get(name):
            return headers[name][:100]
    for mark, name in CHILD_HEADERS:
        if headers.get(mark) and headers.get(name):
            return headers[name][:100]
    return ""


def says_retry(headers: Mapping[str, str]) -> bool:
    return headers.get("x-stainless-retry-count", "0") not in ("0", "")
