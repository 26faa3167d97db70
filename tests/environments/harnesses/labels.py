"""The harnesses of the matrix: a program with the settings that matter."""

from typing import Any

LABELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mini-tools": ("mini-swe-agent-tools", {}),
    "pi-chat": ("pi", {"dialect": "chat"}),
    "pi-responses": ("pi", {"dialect": "responses"}),
    "pi-messages": ("pi", {"dialect": "messages"}),
    "codex": ("codex", {"sub_agents": True}),
    "claude": ("claude-code", {}),
    "claude-bare": ("claude-code", {"bare": True}),
    "opencode": ("opencode", {}),
    "qwen": ("qwen-code", {}),
    "gemini": ("gemini-cli", {}),
    "aider": ("aider", {}),
    "mini-litellm": ("mini-swe-agent-tools", {"model_class": "litellm", "entry": "cli"}),
}
