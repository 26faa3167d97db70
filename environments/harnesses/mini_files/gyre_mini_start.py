"""Start mini-swe-agent through its Python bindings, printing each message; half the start time of its own CLI.

Usage: gyre_mini_start.py CONFIG.yaml TASK. What the config means, and the loop, are mini-swe-agent's own.
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model


class PrintingAgent(DefaultAgent):
    def add_messages(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        for message in messages:
            print(f"{message.get('role')}:\n{message.get('content')}\n", flush=True)
        return list(super().add_messages(*messages))


def main() -> None:
    config = yaml.load(Path(sys.argv[1]).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    environment = LocalEnvironment(**config["environment"])
    ending = PrintingAgent(get_model(config=config["model"]), environment, **config["agent"]).run(sys.argv[2])
    print(f"exit status: {ending.get('exit_status')}", flush=True)


if __name__ == "__main__":
    main()
