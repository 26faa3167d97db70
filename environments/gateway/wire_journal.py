"""Where in a response body keep-alives went, so that a new gateway makes the same bytes.

From:  delivery.py, before each keep-alive that a relay will count.
To:    one Valkey list an exchange, `gyre:wire:<call>:<relay call>`; at the call's end also Call.imposed.
"""

import logging
from uuid import UUID

import redis.asyncio
from django.conf import settings
from redis.exceptions import RedisError

KEPT_S = 6 * 3600

logger = logging.getLogger(__name__)


class WireJournal:
    def __init__(self) -> None:
        self._client = redis.asyncio.Redis.from_url(settings.REDIS_URL)

    async def add(self, call_id: UUID, relay_call: str, position: int) -> None:
        key = f"gyre:wire:{call_id}:{relay_call}"
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.rpush(key, position)
                pipeline.expire(key, KEPT_S)
                await pipeline.execute()
        except RedisError as error:
            logger.warning("A keep-alive was not journaled", extra={"call": str(call_id), "error": str(error)})

    async def load(self, call_id: UUID, relay_call: str) -> list[int]:
        try:
            return [int(item) for item in await self._client.lrange(f"gyre:wire:{call_id}:{relay_call}", 0, -1)]
        except RedisError:
            return []

    async def close(self) -> None:
        await self._client.aclose()
