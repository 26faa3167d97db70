"""Start mini-swe-agent through its Python bindings, printing each message; half the start time of its own CLI.

Usage: gyre_mini_start.py CONFIG TASK, with the directory of the program's packages in $GYRE_PACKAGES.
What the config means, and the loop, are mini-swe-agent's own.
"""

import gc

gc.disable()  # until everything is imported

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.append(os.environ["GYRE_PACKAGES"])  # after the standard library, which is looked up far more often

from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments.local import LocalEnvironment  # noqa: E402
from minisweagent.models import get_model  # noqa: E402

gc.enable()


class PrintingAgent(DefaultAgent):
    def add_messages(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        for message in messages:
            print(f"{message.get('role')}:\n{message.get('content')}\n", flush=True)
        return list(super().add_messages(*messages))


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    environment = LocalEnvironment(**config["environment"])
    ending = PrintingAgent(get_model(config=config["model"]), environment, **config["agent"]).run(sys.argv[2])
    print(f"exit status: {ending.get('exit_status')}", flush=True)
    os._exit(0)  # taking the interpreter apart would cost more than the answer is worth


if __name__ == "__main__":
    main()
