"""Everything the gateway reads from and writes to Postgres, as SQL through a few psycopg connections.

From:  sessions.py, calls.py and routing.py.
To:    Session, Rollout (counters, ending), Call and Node rows; reads Engine rows.
Holds: one call's opening (its prompt nodes, its row, the counters) is one statement, and so is its end; both happen
       only while this gateway holds the session's lease, so a gateway that lost it writes nothing.
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
from environments.gateway.connections import Connections
from environments.text import dump_json, escape_text, restore_json

POOL_SIZE = 16
"""Commits that wait together are flushed together."""
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
        parameters = {"nodes": context_nodes_json(nodes)} | call_parameters(call) | counter_parameters(counters)
        parameters |= {"rollout": rollout_id, "me": self.gateway}
        if not await self._changed(sql.OPEN_CALL, parameters):
            raise LeaseLost

    async def finish_call(self, *, rollout_id: UUID, call: CallRow, node: NodeRow | None, counters: Counters) -> None:
        """Raises LeaseLost, and then nothing is written."""
        parameters = one_node_parameters(node) | call_parameters(call) | counter_parameters(counters)
        parameters |= {"rollout": rollout_id, "me": self.gateway}
        if not await self._changed(sql.FINISH_CALL, parameters):
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


def context_nodes_json(nodes: Sequence[NodeRow]) -> str:
    """Prompt nodes as one JSON text: any number of them is one parameter, made in C."""
    rows = [
        {
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
        for node in nodes
    ]
    return dump_json(rows).decode()


def one_node_parameters(node: NodeRow | None) -> dict[str, Any]:
    """A sampled node, one value a column; all null where there is none."""
    return {
        "n_index": node.index if node else None,
        "n_parent": node.parent if node else None,
        "n_depth": node.depth_tokens if node else None,
        "n_key": node.key if node else None,
        "n_role": node.role if node else "",
        "n_branch_role": node.branch_role if node else "",
        "n_sampled": node.sampled if node else False,
        "n_trainable": node.trainable if node else False,
        "n_opener": node.opener_length if node else 0,
        "n_ids": node.ids if node else None,
        "n_logprobs": node.behaviour_logprobs if node else None,
        "n_spans": dump_json(node.version_spans).decode() if node else None,
        "n_oldest_kv": node.oldest_kv_version if node else None,
        "n_engines": dump_json(node.engines).decode() if node else None,
        "n_message": dump_json(node.message).decode() if node else None,
        "n_flags": dump_json(node.flags).decode() if node else None,
    }


def call_parameters(call: CallRow) -> dict[str, Any]:
    return {
        "c_id": call.id,
        "c_session": call.session_id,
        "c_index": call.index,
        "c_relay_call": call.relay_call,
        "c_dialect": call.dialect,
        "c_digest": call.digest,
        "c_state": call.state,
        "c_prompt_node": call.prompt_node,
        "c_answer_node": call.answer_node,
        "c_streamed": call.streamed,
        "c_requested": dump_json(call.requested).decode(),
        "c_imposed": dump_json(call.imposed).decode(),
        "c_unknown": dump_json(call.unknown).decode(),
        "c_drift": dump_json(call.drift).decode(),
        "c_num_prompt": call.num_prompt_tokens,
        "c_num_cached": call.num_cached_tokens,
        "c_num_sampled": call.num_sampled_tokens,
        "c_finish": call.finish_reason,
        "c_status": call.http_status,
        "c_error": escape_text(call.error),
        "c_engines": dump_json(call.engines).decode(),
        "c_retry_of": call.retry_of_id,
        "c_replay_of": call.replay_of_id,
        "c_started": call.started_at,
        "c_first_token": call.first_token_s,
        "c_held": call.held_s,
        "c_duration": call.duration_s,
    }


def counter_parameters(counters: Counters) -> dict[str, Any]:
    return {
        "r_calls": counters.num_calls,
        "r_branches": counters.num_branches,
        "r_sampled": counters.sampled_tokens,
        "r_distinct": counters.distinct_tokens,
        "r_longest": counters.longest_context,
        "r_oldest": counters.oldest_version,
        "r_newest": counters.newest_version,
        "r_drift": dump_json(counters.drift).decode(),
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
