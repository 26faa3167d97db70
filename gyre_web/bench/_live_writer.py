"""The engines of `bench live`: appends tokens to many live logs at a steady rate, each with the time it was sampled.

From:  gyre_web.bench.live, as a process of its own: `python -m gyre_web.bench._live_writer FILE`, FILE being JSON.
To:    environments.live, as the gateway appends.
"""

import asyncio
import sys
import time
from pathlib import Path
from uuid import UUID

import orjson


async def write(rollout_id: UUID, *, rate: float, num_tokens: int, begin: float, phase: float) -> None:
    """Token i is due at begin + phase + i / rate; a late writer catches up, so lateness shows as latency."""
    from environments import live

    for i in range(num_tokens):
        due = begin + phase + i / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        data = {
            "call": "bench", "parent": 0, "start": i, "ids": [1000 + i], "texts": [" word"], "logprobs": [-0.31], "version": 3,
            "at": time.monotonic(),
        }  # fmt: skip
        await live.append(rollout_id, [("tokens", data)])


async def write_all(plan: dict[str, object]) -> None:
    ids = [UUID(text) for text in plan["rollouts"]]  # type: ignore[attr-defined]
    rate, num_tokens = float(plan["rate"]), int(plan["num_tokens"])  # type: ignore[call-overload, arg-type]
    begin = float(plan["begin"])  # type: ignore[arg-type]
    await asyncio.gather(
        *(
            write(one, rate=rate, num_tokens=num_tokens, begin=begin, phase=i / rate / len(ids))
            for i, one in enumerate(ids)
        )
    )


if __name__ == "__main__":
    import django

    django.setup()
    asyncio.run(write_all(orjson.loads(Path(sys.argv[1]).read_bytes())))
