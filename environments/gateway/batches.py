"""Rows that wait together are written by one statement.

From:  record.py: one row a call that opens, or ends.
To:    Postgres: a statement that takes a JSON array of rows ($1) and this gateway's name ($2), and returns the ids it wrote.
Holds: a row that the statement refuses (its lease is lost, its key exists) fails alone; a rollout is at most once in a
       batch. One statement is under way at a time: the others gather, so a busy database gets few, large ones.
Never: repeats a write whose fate is not known; the caller does.

A statement of its own for each call took a quarter of the gateway's CPU (2026-12-01): 60 parameters, a cursor and four
wakes each.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg import AsyncRawCursor

from environments.gateway.connections import Connections
from environments.text import dump_json

MAX_ROWS = 64
MAX_BYTES = 8 << 20

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Waiting:
    rollout_id: UUID
    row_id: UUID
    json: bytes
    written: "asyncio.Future[bool]"


@dataclass(eq=False, kw_only=True)
class Batches:
    connections: Connections
    statement: str
    gateway: str
    _waiting: list[Waiting] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def write(self, rollout_id: UUID, row: dict[str, Any]) -> bool:
        """Whether it was written (else this gateway does not hold the session). Raises psycopg.Error."""
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(rollout_id=rollout_id, row_id=row["id"], json=dump_json(row), written=written))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())
        return await written

    async def _flush(self) -> None:
        while self._waiting:
            batch = self._take()
            if not batch:
                continue
            error = await self._send(batch)
            if error is None:
                continue
            if len(batch) == 1 or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                fail(batch, error)
                continue
            for waiting in batch:
                if alone := await self._send([waiting]):
                    fail([waiting], alone)

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        rest: list[Waiting] = []
        rollouts: set[UUID] = set()
        size = 0
        for waiting in self._waiting:
            if waiting.written.done():
                continue  # its caller was cancelled before it was sent
            size += len(waiting.json)
            if waiting.rollout_id in rollouts or (batch and (len(batch) >= MAX_ROWS or size > MAX_BYTES)):
                rest.append(waiting)
            else:
                batch.append(waiting)
                rollouts.add(waiting.rollout_id)
        self._waiting = rest
        return batch

    async def _send(self, batch: list[Waiting]) -> Exception | None:
        rows = b"[" + b",".join(waiting.json for waiting in batch) + b"]"
        try:
            async with self.connections.connection() as connection:
                cursor = AsyncRawCursor(connection)
                await cursor.execute(self.statement, [rows.decode(), self.gateway])
                written = {row[0] for row in await cursor.fetchall()}
        except psycopg.Error as error:
            return error
        except Exception as error:  # a task's boundary: whoever waits must hear of it
            logger.exception("Rows could not be written")
            return error
        for waiting in batch:
            if not waiting.written.done():
                waiting.written.set_result(waiting.row_id in written)
        return None


def fail(batch: list[Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.written.done():
            waiting.written.set_exception(error)
