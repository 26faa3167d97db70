"""Rows that wait together: one statement for all of them, and each its own fate."""

import asyncio
from uuid import uuid4

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection as django_connection

from environments.gateway.batches import Batches
from environments.gateway.connections import Connections

STATEMENT = """
select g.id from json_to_recordset($1::json) as g(id uuid, divisor int, holder text)
where g.holder = $2 and 1 / g.divisor = 1
"""
"""Refuses (raises for) a divisor of 0, leaves out the rows of another holder."""


@pytest.fixture
async def batches(transactional_db):
    parameters = await sync_to_async(django_connection.get_connection_params)()
    keep = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters}
    pool = Connections({**keep, "autocommit": True}, size=2)
    made = Batches(connections=pool, statement=STATEMENT, gateway="me")
    yield made
    await pool.close()


@pytest.fixture
def sent(batches, monkeypatch):
    """Sizes of the batches that were sent, in order."""
    sizes, send = [], batches._send

    async def note(batch):
        sizes.append(len(batch))
        return await send(batch)

    monkeypatch.setattr(batches, "_send", note)
    return sizes


def write(batches, *, rollout=None, divisor=1, holder="me"):
    return batches.write(rollout or uuid4(), {"id": uuid4(), "divisor": divisor, "holder": holder})


async def test_rows_that_wait_together_go_in_one_statement_and_each_hears_whether_it_was_written(batches, sent):
    rows = [write(batches), write(batches, holder="another"), write(batches)]
    assert await asyncio.gather(*rows) == [True, False, True]
    assert sent == [3]


async def test_a_row_that_the_statement_refuses_fails_alone(batches, sent):
    rows = [write(batches), write(batches, divisor=0), write(batches)]
    first, second, third = await asyncio.gather(*rows, return_exceptions=True)
    assert (first, third) == (True, True)
    assert isinstance(second, psycopg.errors.DivisionByZero)
    assert sent == [3, 1, 1, 1]


async def test_two_rows_of_a_rollout_are_never_in_one_statement(batches, sent):
    rollout = uuid4()
    rows = [write(batches, rollout=rollout), write(batches, rollout=rollout), write(batches)]
    assert await asyncio.gather(*rows) == [True] * 3
    assert sent == [2, 1]


async def test_a_row_whose_caller_is_gone_before_it_was_sent_is_not_written(batches, sent):
    gone = asyncio.create_task(write(batches))
    await asyncio.sleep(0)
    gone.cancel()
    assert await write(batches) is True
    assert sent == [1]


async def test_when_postgres_cannot_be_reached_all_hear_it_and_nothing_is_repeated(batches, sent):
    batches.connections._parameters["host"] = "/nowhere"
    errors = await asyncio.gather(write(batches), write(batches), return_exceptions=True)
    assert [type(error) for error in errors] == [psycopg.OperationalError] * 2
    assert sent == [2]
