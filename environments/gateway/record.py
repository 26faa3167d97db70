"""Everything the gateway reads from and writes to Postgres, as SQL through a few psycopg connections.

From:  sessions.py, calls.py and routing.py.
To:    Session, Rollout (counters, ending), Call and Node rows; reads Engine rows.
Holds: one call's opening (its prompt nodes, its row, the counters) is written whole or not at all, and so is its end;
       both only while this gateway holds the session's lease, so a gateway that lost it writes nothing.
Never: holds a connection while something is waited for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection as django_connection
from psycopg import AsyncRawCursor
from psycopg.rows import class_row, dict_row

from environments.gateway import sql
from environments.gateway.batches import Batches
from environments.gateway.connections import Connections
from environments.text import dump_json, restore_json

POOL_SIZE = 8
LEASE_S = 15.0


logger = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Gateway boundary: another gateway holds the session now, or the session is finished."""


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    id: UUID
    name: str
    pool: str
    base_url: str
    api_key: str
    model_name: str
    state: str
    version: int
    cache_policy: str
    standalone: bool
    turn_order: int


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """A session with what its calls need of its rollout."""

    id: UUID
    key: str
    gateway: str
    lease_is_over: bool
    finished_at: datetime | None
    rollout_id: UUID
    pool: str
    sampling: dict[str, Any]
    budgets: dict[str, Any]
    ending: str
    drift: dict[str, int]
    delivery: str
    program: str
    instruction: str
    task_directory: str
    model_id: UUID
    is_second: bool
    """Calls of an earlier session of its rollout are recorded."""
    original_id: UUID | None
    """Of a fork: whose record it starts from, up to call number `fork_call`."""
    fork_call: int | None


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    index: int
    parent: int | None
    depth_tokens: int
    key: bytes
    role: str
    branch_role: str
    ids: bytes
    message: dict[str, Any]
    sampled: bool = False
    trainable: bool = False
    opener_length: int = 0
    behaviour_logprobs: bytes | None = None
    version_spans: Sequence[Sequence[int]] = ()
    oldest_kv_version: int | None = None
    engines: Sequence[str] = ()
    flags: Sequence[str] = ()


@dataclass(kw_only=True)
class CallRow:
    """Not frozen: a call's row changes many times while it is under way."""

    id: UUID
    session_id: UUID
    index: int
    relay_call: str
    dialect: str
    digest: bytes
    state: str
    prompt_node: int | None
    answer_node: int | None
    streamed: bool
    requested: dict[str, Any]
    imposed: dict[str, Any]
    unknown: dict[str, Any]
    drift: list[list[Any]]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_sampled_tokens: int
    finish_reason: str
    http_status: int | None
    error: str
    engines: list[str]
    retry_of_id: UUID | None
    replay_of_id: UUID | None
    started_at: datetime
    first_token_s: float | None
    held_s: float
    duration_s: float | None


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Of a rollout; the gateway that holds it is their only writer."""

    num_calls: int
    num_branches: int
    sampled_tokens: int
    distinct_tokens: int
    longest_context: int
    oldest_version: int | None
    newest_version: int | None
    drift: dict[str, int]


class Record:
    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        """This gateway's name, as leases carry it."""
        parameters = django_connection.get_connection_params()
        keep = {k: v for k, v in parameters.items() if k in ("dbname", "user", "password", "host", "port", "sslmode")}
        self._pool = Connections({**keep, "autocommit": True, "prepare_threshold": 2}, size=POOL_SIZE)
        self._opened = Batches(connections=self._pool, statement=sql.OPEN_CALLS, gateway=gateway)
        self._finished = Batches(connections=self._pool, statement=sql.FINISH_CALLS, gateway=gateway)

    async def close(self) -> None:
        await self._pool.close()

    async def load_engines(self) -> list[EngineRow]:
        async with self._pool.connection() as connection, connection.cursor(row_factory=class_row(EngineRow)) as cursor:
            await cursor.execute(sql.LOAD_ENGINES)
            return await cursor.fetchall()

    async def load_session(self, key: str) -> SessionRow | None:
        async with (
            self._pool.connection() as connection,
            connection.cursor(row_factory=class_row(SessionRow)) as cursor,
        ):
            await cursor.execute(sql.LOAD_SESSION, {"key": key})
            return await cursor.fetchone()

    async def claim_session(self, session_id: UUID, *, seen_holder: str) -> bool:
        """Take the lease from nobody, from `seen_holder` (known to be dead), or when it ran out."""
        return await self._changed(
            sql.CLAIM_SESSION,
            {"session": session_id, "me": self.gateway, "seen": seen_holder, "lease_s": LEASE_S},
        )

    async def renew_sessions(self, session_ids: Sequence[UUID]) -> set[UUID]:
        """Those that are still ours and not finished."""
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                sql.RENEW_SESSIONS, {"sessions": list(session_ids), "me": self.gateway, "lease_s": LEASE_S}
            )
            return {row[0] for row in await cursor.fetchall()}

    async def release_sessions(self) -> None:
        await self._changed(sql.RELEASE_SESSIONS, {"me": self.gateway})

    async def load_nodes(self, rollout_id: UUID) -> list[NodeRow]:
        async with self._pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(sql.LOAD_NODES, {"rollout": rollout_id})
            return [NodeRow(**{**row, "message": restore_json(row["message"])}) for row in await cursor.fetchall()]

    async def load_calls(self, rollout_id: UUID) -> list[CallRow]:
        async with self._pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(sql.LOAD_CALLS, {"rollout": rollout_id})
            return [CallRow(**restore_json(row)) for row in await cursor.fetchall()]

    async def open_call(self, *, rollout_id: UUID, call: CallRow, nodes: Sequence[NodeRow], counters: Counters) -> None:
        """Raises LeaseLost, and then nothing is written."""
        row = call_json(call) | counter_json(rollout_id, counters) | {"nodes": [node_json(node) for node in nodes]}
        if not await self._opened.write(rollout_id, row):
            raise LeaseLost

    async def finish_call(self, *, rollout_id: UUID, call: CallRow, node: NodeRow | None, counters: Counters) -> None:
        """Raises LeaseLost, and then nothing is written."""
        row = call_end_json(call) | counter_json(rollout_id, counters) | {"node": sampled_json(node) if node else {}}
        if not await self._finished.write(rollout_id, row):
            raise LeaseLost

    async def mark_call(
        self, *, rollout_id: UUID, call_id: UUID, state: str, node: int | None, trainable: bool, flags: Sequence[str]
    ) -> None:
        """After the fact: aborted (never delivered) or promoted (used as complete after all)."""
        await self._changed(
            sql.MARK_CALL,
            {
                "rollout": rollout_id,
                "call": call_id,
                "state": state,
                "node": node,
                "trainable": trainable,
                "flags": dump_json(list(flags)).decode(),
            },
        )

    async def set_ending(self, rollout_id: UUID, ending: str) -> None:
        await self._changed(sql.SET_ENDING, {"rollout": rollout_id, "ending": ending})

    async def _changed(self, sql_text: str, parameters: dict[str, Any]) -> bool:
        statement = sql.compile_statement(sql_text)
        async with self._pool.connection() as connection:
            cursor = AsyncRawCursor(connection)
            await cursor.execute(statement.text, statement.values(parameters))
            return cursor.rowcount > 0


def node_json(node: NodeRow) -> dict[str, Any]:
    return {
        "index": node.index,
        "parent": node.parent,
        "depth_tokens": node.depth_tokens,
        "key": node.key.hex(),
        "role": node.role,
        "branch_role": node.branch_role,
        "ids": node.ids.hex(),
        "message": node.message,
        "flags": list(node.flags),
    }


def sampled_json(node: NodeRow) -> dict[str, Any]:
    return node_json(node) | {
        "sampled": node.sampled,
        "trainable": node.trainable,
        "opener_length": node.opener_length,
        "logprobs": None if node.behaviour_logprobs is None else node.behaviour_logprobs.hex(),
        "version_spans": node.version_spans,
        "oldest_kv_version": node.oldest_kv_version,
        "engines": node.engines,
    }


def call_json(call: CallRow) -> dict[str, Any]:
    return vars(call) | {"digest": call.digest.hex()}


ENDED = (
    "id", "session_id", "state", "answer_node", "imposed", "num_cached_tokens", "num_sampled_tokens", "finish_reason",
    "http_status", "error", "engines", "first_token_s", "held_s", "duration_s",
)  # fmt: skip
"""What of a call is written at its end."""


def call_end_json(call: CallRow) -> dict[str, Any]:
    return {name: getattr(call, name) for name in ENDED}


def counter_json(rollout_id: UUID, counters: Counters) -> dict[str, Any]:
    return {
        "rollout": rollout_id,
        "r_calls": counters.num_calls,
        "r_branches": counters.num_branches,
        "r_sampled": counters.sampled_tokens,
        "r_distinct": counters.distinct_tokens,
        "r_longest": counters.longest_context,
        "r_oldest": counters.oldest_version,
        "r_newest": counters.newest_version,
        "r_drift": counters.drift,
    }


async def persist(write: Callable[[], Awaitable[None]]) -> None:
    """Repeat until Postgres takes it: a restart of the database is not the harness's business. Raises LeaseLost."""
    for attempt in range(1_000_000):
        try:
            await write()
            return
        except psycopg.errors.UniqueViolation as error:
            if attempt:
                return  # the first try was committed, only its answer was lost
            raise LeaseLost from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if attempt == 0:
                logger.warning("Postgres cannot be reached; holding", extra={"error": str(error)})
            await asyncio.sleep(min(1.0, 0.05 * 2**attempt))
