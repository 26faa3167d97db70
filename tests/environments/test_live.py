"""The live log: dense, atomic, ordered, and honest about what was lost."""

import asyncio
from uuid import uuid4

import redis
from channels.layers import get_channel_layer
from django.conf import settings

from environments import live


async def test_entries_are_dense_and_read_back_in_order():
    rollout = uuid4()
    await live.append(rollout, [("state", {"state": "running"}), ("output", {"text": "a"})])
    await live.append(rollout, [("output", {"text": "b"})])
    page = await live.read(rollout, None)
    assert [(e.n, e.kind) for e in page.entries] == [(1, "state"), (2, "output"), (3, "output")]
    assert not page.reset
    assert await live.head(rollout) == (page.entries[0].epoch, 3)


async def test_reading_after_an_entry_gives_only_what_is_newer():
    rollout = uuid4()
    await live.append(rollout, [("output", {"text": str(i)}) for i in range(5)])
    epoch = (await live.head(rollout))[0]
    page = await live.read(rollout, (epoch, 3))
    assert [e.data["text"] for e in page.entries] == ["3", "4"]
    assert not page.reset


async def test_many_writers_leave_no_gap_and_no_double():
    rollout = uuid4()
    await asyncio.gather(*(live.append(rollout, [("output", {"i": i})]) for i in range(300)))
    page = await live.read(rollout, None)
    assert [e.n for e in page.entries] == list(range(1, 301))
    assert sorted(e.data["i"] for e in page.entries) == list(range(300))


async def test_a_lost_log_begins_a_higher_epoch_and_tells_its_readers():
    rollout = uuid4()
    await live.append(rollout, [("output", {"text": "old"})])
    old = await live.head(rollout)
    redis.Redis.from_url(settings.REDIS_URL).delete(f"gyre:live:{rollout}")
    assert (await live.read(rollout, old)).reset
    await asyncio.sleep(0.002)
    await live.append(rollout, [("output", {"text": "new"})])
    page = await live.read(rollout, old)
    assert page.reset
    assert [(e.n, e.data["text"]) for e in page.entries] == [(1, "new")]
    assert page.entries[0].epoch > old[0]


async def test_a_reader_older_than_a_trimmed_log_is_reset():
    rollout = uuid4()
    await live.append(rollout, [("output", {"i": i}) for i in range(1000)])
    epoch = (await live.head(rollout))[0]
    redis.Redis.from_url(settings.REDIS_URL).xtrim(f"gyre:live:{rollout}", maxlen=100, approximate=False)
    assert (await live.read(rollout, (epoch, 10))).reset
    assert not (await live.read(rollout, (epoch, 950))).reset


async def test_an_emptied_valkey_that_forgot_the_script_is_no_obstacle():
    rollout = uuid4()
    await live.append(rollout, [("output", {})])
    redis.Redis.from_url(settings.REDIS_URL).script_flush()
    await live.append(rollout, [("output", {})])
    assert (await live.head(rollout))[1] == 2


async def test_the_log_expires_after_the_rollout_ended():
    rollout = uuid4()
    client = redis.Redis.from_url(settings.REDIS_URL)
    await live.append(rollout, [("state", {"state": "running"})])
    assert client.ttl(f"gyre:live:{rollout}") > live.EXPIRES_AFTER_END_S
    await live.append(rollout, [("state", {"state": "ended"})])
    assert 0 < client.ttl(f"gyre:live:{rollout}") <= live.EXPIRES_AFTER_END_S


async def test_appends_ring_at_once_and_once_more_for_what_followed():
    rollout = uuid4()
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(f"rollout.{rollout.hex}", channel)
    for i in range(20):
        await live.append(rollout, [("output", {"i": i})])
    first = await asyncio.wait_for(layer.receive(channel), 2)
    second = await asyncio.wait_for(layer.receive(channel), 2)
    assert first == second == {"type": "doorbell", "rollout": str(rollout)}


async def test_threads_append_too():
    rollout = uuid4()
    await asyncio.gather(*(asyncio.to_thread(live.append_sync, rollout, [("output", {"i": i})]) for i in range(8)))
    assert len((await live.read(rollout, None)).entries) == 8


async def test_nul_and_lone_surrogates_are_kept_reversibly():
    from environments.text import restore_json

    rollout = uuid4()
    await live.append(rollout, [("output", {"text": "a\x00b\ud800c\uf8ffd"})])
    assert restore_json((await live.read(rollout, None)).entries[0].data)["text"] == "a\x00b\ud800c\uf8ffd"
