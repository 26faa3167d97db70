"""The live websocket: who may listen, and that nothing is lost, doubled or piled up."""

# mypy: disable-error-code=no-untyped-call

import asyncio
import uuid
from http.cookies import SimpleCookie

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore

from environments import live
from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.asgi import application
from gyre_web.watch import consumers, hub, subscription
from gyre_web.watch.protocol import CloseCode
from tests.gyre_web.watch.makers import make_rollout, make_user
from tests.gyre_web.watch.sockets import WebsocketCommunicator

pytestmark = [pytest.mark.django_db(transaction=True)]


def sign_in(user: User) -> str:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


def socket(session_key: str = "", origin: str = "http://localhost") -> WebsocketCommunicator:
    cookie = SimpleCookie({settings.SESSION_COOKIE_NAME: session_key}).output(header="").strip()
    headers = [(b"origin", origin.encode()), (b"host", b"localhost"), (b"cookie", cookie.encode())]
    return WebsocketCommunicator(application, "/live", headers=headers)


async def connected(role: str = "viewer") -> tuple[WebsocketCommunicator, str]:
    key = await sync_to_async(lambda: sign_in(make_user(role)))()
    communicator = socket(key)
    accepted = await communicator.connect()
    assert accepted
    return communicator, key


async def rollout_row() -> Rollout:
    return await sync_to_async(make_rollout)()


async def collect(communicator: WebsocketCommunicator, stream: str, count: int) -> list[int]:
    """The n of `count` entries, acknowledging each frame."""
    seen: list[int] = []
    while len(seen) < count:
        message = await communicator.hear()
        if message["op"] == "events":
            seen += [entry[0] for entry in message["entries"]]
            await communicator.say(op="ack", stream=stream, position=[message["epoch"], seen[-1]])
    return seen


async def append(rollout: Rollout, count: int, size: int = 1) -> None:
    await live.append(rollout.pk, [("output", {"text": "x" * size}) for _ in range(count)])


async def test_a_stranger_is_cut_off_as_signed_out():
    communicator = socket("no-such-session")
    accepted = await communicator.connect()
    assert accepted
    assert await communicator.closed_with() == CloseCode.SIGNED_OUT


async def test_another_sites_page_may_not_open_the_socket():
    key = await sync_to_async(lambda: sign_in(make_user()))()
    communicator = socket(key, origin="https://evil.example")
    accepted = await communicator.connect()
    assert not accepted


async def test_a_person_without_a_role_is_forbidden(monkeypatch):
    monkeypatch.setattr(User, "has_role", lambda self, role: False)
    key = await sync_to_async(lambda: sign_in(make_user()))()
    communicator = socket(key)
    await communicator.connect()
    assert await communicator.closed_with() == CloseCode.FORBIDDEN


async def test_a_viewer_gets_what_is_there_and_then_what_comes():
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    await append(rollout, 3)
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=stream, after=None)
    assert (await communicator.hear())["op"] == "subscribed"
    assert await collect(communicator, stream, 3) == [1, 2, 3]
    await append(rollout, 2)
    assert await collect(communicator, stream, 2) == [4, 5]
    await communicator.disconnect()


async def test_a_bell_brings_an_entry_long_before_the_reread(monkeypatch):
    monkeypatch.setattr(hub, "REREAD_S", 60.0)
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=stream, after=None)
    assert (await communicator.hear())["op"] == "subscribed"
    await append(rollout, 1)
    assert await collect(communicator, stream, 1) == [1]
    await communicator.disconnect()


async def test_a_lost_bell_is_made_up_for_by_the_reread(monkeypatch):
    monkeypatch.setattr(hub, "REREAD_S", 0.05)
    monkeypatch.setattr(hub.Hub, "_listen", lambda self: asyncio.sleep(0))
    rollout = await rollout_row()
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=f"rollout:{rollout.pk}", after=None)
    assert (await communicator.hear())["op"] == "subscribed"
    await append(rollout, 1)
    assert await collect(communicator, f"rollout:{rollout.pk}", 1) == [1]
    await communicator.disconnect()


async def test_a_log_that_many_sockets_follow_is_read_once_a_tick(monkeypatch):
    asked: list[int] = []
    read_many = live.read_many

    async def counting(places, limit):
        asked.append(len(places))
        return await read_many(places, limit)

    monkeypatch.setattr(live, "read_many", counting)
    rollouts = [await rollout_row() for _ in range(3)]
    people = [(await connected())[0] for _ in range(4)]
    for communicator in people:
        for rollout in rollouts:
            await communicator.say(op="subscribe", stream=f"rollout:{rollout.pk}", after=None)
            assert (await communicator.hear())["op"] == "subscribed"
    await asyncio.sleep(0.2)
    asked.clear()
    for rollout in rollouts:
        await append(rollout, 2)
    for communicator in people:
        for _ in rollouts:
            assert [entry[0] for entry in (await communicator.hear())["entries"]] == [1, 2]
    assert max(asked) <= 3, "one read a log, not one a socket"
    for communicator in people:
        await communicator.disconnect()
    assert not hub.hub().followers


async def test_after_a_cut_it_goes_on_from_the_last_entry_without_loss_or_doubles():
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    await append(rollout, 4)
    first, key = await connected()
    await first.say(op="subscribe", stream=stream, after=None)
    assert await collect(first, stream, 4) == [1, 2, 3, 4]
    await first.disconnect()
    await append(rollout, 3)
    head = await live.head(rollout.pk)
    assert head is not None
    second = socket(key)
    await second.connect()
    await second.say(op="subscribe", stream=stream, after=[head[0], 4])
    assert await collect(second, stream, 3) == [5, 6, 7]
    await second.disconnect()


async def test_one_frame_is_in_flight_until_it_is_acknowledged():
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    await append(rollout, 2)
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=stream, after=None)
    await communicator.hear()
    frame = await communicator.hear()
    for _ in range(5):
        await append(rollout, 400, size=50)
    assert await communicator.receive_nothing(timeout=0.3)
    await communicator.say(op="ack", stream=stream, position=[frame["epoch"], 1])
    assert await communicator.receive_nothing(timeout=0.2), "an acknowledgement of half a frame frees nothing"
    await communicator.say(op="ack", stream=stream, position=[frame["epoch"], 2])
    following = await communicator.hear()
    assert [entry[0] for entry in following["entries"]] == list(range(3, 503))
    assert following["lag"] == 1500
    await communicator.disconnect()


async def test_a_reader_that_fell_far_behind_is_told_how_far_and_jumps(monkeypatch):
    monkeypatch.setattr(subscription, "SLOW_S", 0.05)
    monkeypatch.setattr(subscription, "SLOW_ENTRIES", 1000)
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    await append(rollout, 1)
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=stream, after=None)
    await communicator.hear()
    frame = await communicator.hear()
    for _ in range(5):
        await append(rollout, 500)
    await asyncio.sleep(0.1)
    await communicator.say(op="ack", stream=stream, position=[frame["epoch"], 1])
    assert await communicator.hear() == {"op": "reset", "stream": stream, "reason": "slow", "lag": 2000}
    await communicator.disconnect()


async def test_a_reader_that_never_answers_is_closed_as_too_slow(monkeypatch):
    monkeypatch.setattr(subscription, "ACK_TIMEOUT_S", 0.1)
    rollout = await rollout_row()
    await append(rollout, 1)
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=f"rollout:{rollout.pk}", after=None)
    assert await communicator.closed_with() == CloseCode.TOO_SLOW


async def test_a_position_that_the_log_does_not_know_is_reset():
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    await append(rollout, 2)
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=stream, after=[1, 7])
    assert (await communicator.hear())["op"] == "subscribed"
    assert await communicator.hear() == {"op": "reset", "stream": stream, "reason": "trimmed", "lag": 0}
    await communicator.disconnect()


async def test_a_big_page_travels_in_frames_of_bounded_size(monkeypatch):
    monkeypatch.setattr(subscription, "FRAME_BYTES", 10_000)
    rollout = await rollout_row()
    stream = f"rollout:{rollout.pk}"
    await append(rollout, 10, size=4000)
    communicator, _ = await connected()
    await communicator.say(op="subscribe", stream=stream, after=None)
    await communicator.hear()
    frame = await communicator.hear()
    assert [entry[0] for entry in frame["entries"]] == [1, 2]
    await communicator.say(op="ack", stream=stream, position=[frame["epoch"], 2])
    assert await collect(communicator, stream, 8) == list(range(3, 11))
    await communicator.disconnect()


async def test_who_signs_out_elsewhere_is_cut_off_while_connected(monkeypatch):
    monkeypatch.setattr(consumers.LiveConsumer, "recheck_s", 0.05)
    communicator, key = await connected()
    await sync_to_async(SessionStore(key).flush)()
    assert await communicator.closed_with() == CloseCode.SIGNED_OUT


async def test_who_is_deactivated_is_cut_off_while_connected(monkeypatch):
    monkeypatch.setattr(consumers.LiveConsumer, "recheck_s", 0.05)
    communicator, _ = await connected()
    await User.objects.aupdate(is_active=False)
    assert await communicator.closed_with() == CloseCode.SIGNED_OUT


async def test_an_unknown_rollout_closes_that_stream_only():
    rollout = await rollout_row()
    communicator, _ = await connected()
    gone = f"rollout:{uuid.uuid4()}"
    await communicator.say(op="subscribe", stream=gone, after=None)
    assert await communicator.hear() == {
        "op": "closed",
        "stream": gone,
        "code": 4004,
        "reason": "There is no such rollout.",
    }
    await communicator.say(op="subscribe", stream=f"rollout:{rollout.pk}", after=None)
    assert (await communicator.hear())["op"] == "subscribed"
    await communicator.disconnect()


@pytest.mark.parametrize(
    "frame",
    [b"{", b"[]", b'{"op":"shout"}', b'{"op":"subscribe","stream":"rollout:x"}', b'{"op":"subscribe","stream":"secret:1"}', b"\xff" * 5000,
     b'{"op":"subscribe","stream":"rollout:00000000-0000-0000-0000-000000000000","after":[1]}'],
)  # fmt: skip
async def test_a_frame_that_the_protocol_does_not_know_ends_the_socket(frame):
    communicator, _ = await connected()
    await communicator.send_bytes(frame)
    assert await communicator.closed_with() == CloseCode.BAD_REQUEST


async def test_an_attempts_stream_says_that_something_changed():
    from tests.gyre_web.watch.makers import make_member

    member = await sync_to_async(lambda: make_member(make_rollout()))()
    attempt_id = await sync_to_async(lambda: member.group.attempt_id)()
    communicator, _ = await connected()
    stream = f"attempt:{attempt_id}"
    await communicator.say(op="subscribe", stream=stream, after=None)
    assert (await communicator.hear())["op"] == "subscribed"
    await asyncio.to_thread(live.ring_attempt_sync, attempt_id)
    assert await communicator.hear() == {"op": "changed", "stream": stream}
    await communicator.disconnect()
