"""A few Postgres connections for many short statements.

From:  record.py.
To:    psycopg async connections in autocommit mode, lent for one statement.
Holds: a connection that broke is replaced; who waits longest is served first.
Never: opens a transaction, checks a connection before it lends it (a broken one raises, and the caller repeats).

psycopg_pool does more, behind a lock that every borrower passes twice: with 64 sessions on a busy machine that lock
took 450 ms of a call's time, the statements themselves 25 ms (2026-12-01).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import psycopg


class Connections:
    def __init__(self, parameters: dict[str, Any], *, size: int) -> None:
        self._parameters, self._size = parameters, size
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._num_open = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Raises psycopg.OperationalError when Postgres cannot be reached."""
        borrowed = await self._take()
        try:
            yield borrowed
        except BaseException:
            # cancelled in mid-statement, or failed: its state is not known
            if borrowed.closed or borrowed.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await borrowed.close()
            raise
        finally:
            self._give_back(borrowed)

    async def _take(self) -> psycopg.AsyncConnection[Any]:
        while True:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
                self._num_open -= 1
            if self._num_open < self._size:
                return await self._connect()
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            try:
                await freed
            except asyncio.CancelledError:
                if freed.done() and not freed.cancelled():
                    self._wake()
                raise

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        self._num_open += 1
        try:
            return await psycopg.AsyncConnection.connect(**self._parameters)
        except BaseException:
            self._num_open -= 1
            self._wake()
            raise

    def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if connection.closed:
            self._num_open -= 1
        else:
            self._idle.append(connection)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            freed = self._waiting.popleft()
            if not freed.done():
                freed.set_result(None)
                return

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()
