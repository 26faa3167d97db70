"""Prepared sandboxes: how many, for whom, within which bound, and that none is left that nobody wants."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes import engine_client, nothing_prepared, pool, reap
from environments.sandboxes.container import Form, build_form
from environments.sandboxes.image_facts import ImageFacts
from environments.sandboxes.pool import Pool
from tests.environments.sandboxes.conftest import LIMITS, LaunchShell
from tests.environments.sandboxes.waiting import wait_end, wait_for, wait_output

pytestmark = pytest.mark.sandbox

FACTS = ImageFacts(image="sha256:1", work_directory="/work", environment={}, passwd="", group="")
MIB = 1 << 20


def form(purpose: str = "agent", **changes: Any) -> Form:
    plain = Form(facts=FACTS, purpose=purpose, gateway=False, egress="", limits=LIMITS, mounts=())
    return replace(plain, **changes)


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Pool:
    """The pool that launches use, without its thread: a test calls `balance` itself."""
    settings.WARM_SANDBOXES = 3
    mine = Pool()
    monkeypatch.setattr(pool, "POOL", mine)
    monkeypatch.setattr(Pool, "_run", lambda self: None)
    return mine


# ---- how many: without an engine


def test_there_are_as_many_as_were_launched_in_the_last_minute_and_the_busiest_come_first(own_pool: Pool) -> None:
    for wanted in (form("verifier"), form("agent"), form("agent")):
        own_pool.note(wanted)
    assert own_pool.wanted() == {form("agent").key: 2, form("verifier").key: 1}

    own_pool.note(form("agent"))  # 3 and 1, of which 3 fit
    assert own_pool.wanted() == {form("agent").key: 3, form("verifier").key: 0}


def test_launches_of_more_than_a_minute_ago_count_no_more(own_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: clock[0])
    own_pool.note(form())
    clock[0] += pool.WINDOW_S - 1
    own_pool.note(form())
    assert own_pool.wanted() == {form().key: 2}
    clock[0] += 2
    assert own_pool.wanted() == {form().key: 1}
    clock[0] += pool.WINDOW_S
    assert own_pool.wanted() == {form().key: 0}


@pytest.mark.parametrize(
    "unfit",
    [form(egress="/run/egress/1"), form(facts=replace(FACTS, uid=1_900_000_001))],
    ids=["a proxy serves one sandbox", "an image kept from a sandbox is used once"],
)
def test_what_cannot_be_shared_is_not_prepared(own_pool: Pool, unfit: Form) -> None:
    own_pool.note(unfit)
    assert own_pool.wanted() == {}


def test_none_is_prepared_where_the_operator_says_none_or_within_a_command_that_ends(own_pool: Pool, settings) -> None:
    with nothing_prepared():
        own_pool.note(form())
    settings.WARM_SANDBOXES = 0
    own_pool.note(form())
    assert own_pool.wanted() == {}


def test_another_limit_mount_or_image_is_another_form() -> None:
    changed = [
        form(limits=replace(LIMITS, memory_bytes=1)),
        form(gateway=True),
        form("verifier"),
        form(facts=replace(FACTS, image="sha256:2")),
    ]
    assert len({form().key, *(one.key for one in changed)}) == 5
    assert form().key == form().key


# ---- who makes and takes them: real containers


@pytest.fixture
def warm_up(launch_shell: LaunchShell, own_pool: Pool) -> Iterator[Any]:
    """warm_up(n) -> n launches that have ended, noted by the pool."""

    def launch(number: int, **changes: Any) -> None:
        for _ in range(number):
            launch_shell("true", **changes).remove()

    yield launch
    for row in Sandbox.objects.filter(purpose=Sandbox.Purpose.WARM):
        own_pool._remove(row)


def warm_rows() -> list[Sandbox]:
    return list(Sandbox.objects.filter(purpose=Sandbox.Purpose.WARM, stopped_at=None).order_by("created_at"))


def fill(own_pool: Pool) -> int:
    """Until nothing more is made; returns how many there are."""
    while (before := len(warm_rows())) < (there := own_pool.balance()):
        assert there - before == 1  # one a round and form: launches go before
    return len(warm_rows())


@pytest.mark.docker
def test_a_launch_takes_a_prepared_one_and_the_pool_makes_another(
    launch_shell: LaunchShell, own_pool: Pool, warm_up: Any
) -> None:
    warm_up(2)
    assert fill(own_pool) == 2
    first, second = warm_rows()
    assert {len(engine_client.own_containers(str(row.id))) for row in (first, second)} == {1}

    handle = launch_shell("cat task.txt; sleep 60")

    wait_output(handle, b"find me\n")
    assert handle.row.id == first.id
    first.refresh_from_db()
    assert (first.purpose, first.rollout_id) == ("agent", launch_shell.rollout.id)
    assert first.lease_expires_at > timezone.now() + timedelta(seconds=pool.WARM_LEASE_S + 60)
    assert warm_rows() == [second]
    assert fill(own_pool) == 3  # three launches by now, and three is the bound
    assert second in warm_rows()


@pytest.mark.docker
def test_the_bound_holds_over_all_forms(own_pool: Pool, warm_up: Any, launch_shell: LaunchShell) -> None:
    warm_up(2)
    warm_up(4, limits=replace(LIMITS, memory_bytes=400 * MIB))
    assert fill(own_pool) == 3
    small = build_form(launch_shell.build("true", limits=replace(LIMITS, memory_bytes=400 * MIB)))
    assert {row.handle["form"] for row in warm_rows()} == {small.key}
    assert len(warm_rows()) == 3


@pytest.mark.docker
def test_two_workers_of_a_host_share_what_is_there_and_do_not_undo_each_other(
    own_pool: Pool, warm_up: Any, launch_shell: LaunchShell
) -> None:
    warm_up(2)
    fill(own_pool)
    mine = warm_rows()
    other = Pool()
    other.note(build_form(launch_shell.build("true")))

    assert other.balance() == 1
    assert other.balance() == 1

    assert len(warm_rows()) == 3
    assert set(mine) <= set(warm_rows())
    claimed = other.claim(build_form(launch_shell.build("true")), launch_shell.build("true"))
    assert claimed is not None
    assert claimed.row in mine  # the oldest, whoever made it


@pytest.mark.docker
def test_what_nobody_wants_any_more_is_removed_with_its_container(
    own_pool: Pool, warm_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up(2)
    fill(own_pool)
    names = [row.id for row in warm_rows()]
    monkeypatch.setattr(pool, "WINDOW_S", 0.0)

    assert own_pool.balance() == 0

    assert not Sandbox.objects.filter(pk__in=names).exists()
    assert [engine_client.own_containers(str(name)) for name in names] == [[], []]
    own_pool.balance()
    assert own_pool._forms == {}  # nothing is remembered of it


@pytest.mark.docker
def test_one_that_died_is_not_handed_out_and_is_left_to_the_reaper(
    launch_shell: LaunchShell, own_pool: Pool, warm_up: Any
) -> None:
    warm_up(1)
    fill(own_pool)
    (dead,) = warm_rows()
    engine_client.client().kill(str(dead.handle["container"]))
    wait_for(lambda: not pool.DockerHandle(dead).is_alive())

    handle = launch_shell("echo here")

    assert wait_end(handle).exit_code == 0
    assert handle.row.id != dead.id
    reap()
    assert engine_client.own_containers(str(dead.id)) == []


@pytest.mark.docker
def test_what_a_dead_worker_prepared_is_reaped_when_its_lease_is_over(own_pool: Pool, warm_up: Any) -> None:
    warm_up(1)
    fill(own_pool)
    (left,) = warm_rows()
    reap()
    assert warm_rows() == [left]
    Sandbox.objects.filter(pk=left.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))

    reap()

    assert not Sandbox.objects.filter(pk=left.pk).exists()
    assert engine_client.own_containers(str(left.id)) == []


@pytest.mark.docker
def test_two_launches_at_once_never_get_the_same_one(
    launch_shell: LaunchShell, own_pool: Pool, warm_up: Any, transactional_db: None
) -> None:
    warm_up(1)
    fill(own_pool)
    launch = launch_shell.build("sleep 60")
    wanted, taken, start = build_form(launch), [], threading.Barrier(4)

    def claim() -> None:
        start.wait()
        taken.append(own_pool.claim(wanted, launch))
        connections.close_all()

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(taken) == 4
    assert sum(handle is not None for handle in taken) == 1


@pytest.mark.docker
def test_the_pool_fills_itself_in_the_background(
    launch_shell: LaunchShell, settings: Any, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    settings.WARM_SANDBOXES = 2
    mine = Pool()
    monkeypatch.setattr(pool, "POOL", mine)
    launch_shell("true").remove()
    launch_shell("true").remove()
    wait_for(lambda: len([row for row in warm_rows() if "pid" in row.handle]) == 2, timeout_s=60.0)
    monkeypatch.setattr(pool, "WINDOW_S", 0.0)
    wait_for(lambda: not warm_rows() and mine._thread is None, timeout_s=60.0)
