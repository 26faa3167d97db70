"""The door of an engine, before a stand-in for vLLM's app."""

import asyncio

import httpx
import pytest

from training.engine_front import EngineFront


class StandIn:
    """Answers 200 to everything and writes down what it was asked."""

    def __init__(self):
        self.asked = []

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        self.asked.append((scope["path"], body.decode()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def app():
    return StandIn()


@pytest.fixture
def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(EngineFront(app, key="k")), base_url="http://engine")


KEY = {"authorization": "Bearer k"}


@pytest.mark.parametrize(
    "path", ["/pause", "/collective_rpc", "/resume", "/inference/v1/generate", "/metrics", "/sleep"]
)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer x"}, {"authorization": "k"}])
async def test_nothing_is_asked_without_the_key(app, client, path, headers):
    answer = await client.post(path, headers=headers)
    assert answer.status_code == 401
    assert app.asked == []


async def test_health_needs_no_key_and_the_key_opens_the_rest(app, client):
    assert (await client.get("/health")).status_code == 200
    assert (await client.post("/pause", headers=KEY)).status_code == 200
    assert [path for path, _ in app.asked] == ["/health", "/pause"]


async def paused(client, lease_s):
    await client.post("/pause", headers={**KEY, "x-gyre-pause-lease-s": str(lease_s), "x-gyre-pause-version": "7"})


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_pause_whose_author_died_ends_by_itself(app, client):
    await paused(client, 0.02)
    await until(lambda: len(app.asked) == 2)
    assert app.asked[1] == ("/resume", "")


async def test_weights_that_were_already_exchanged_get_their_version_first(app, client):
    await paused(client, 0.02)
    await client.post("/collective_rpc", headers=KEY)
    await until(lambda: len(app.asked) == 4)
    assert app.asked[2:] == [("/update_weight_version", '{"new_version": "7"}'), ("/resume", "")]


async def test_a_pause_that_was_ended_is_not_ended_again(app, client):
    await paused(client, 0.02)
    await client.post("/resume", headers=KEY)
    await asyncio.sleep(0.06)
    assert [path for path, _ in app.asked] == ["/pause", "/resume"]


async def test_a_pause_without_a_lease_stays(app, client):
    await client.post("/pause", headers=KEY)
    await asyncio.sleep(0.03)
    assert [path for path, _ in app.asked] == ["/pause"]
