"""The list of runs: what it shows, finds and sorts, and what it costs."""

import pytest
from django.test.utils import CaptureQueriesContext

from gyre_web.runs.selectors import RunFilter, list_runs
from tests.gyre_web.factories import make_run, make_user
from training.models import Attempt

pytestmark = pytest.mark.django_db


def names(**wanted):
    return [row.run.name for row in list_runs(RunFilter(**wanted))[0]]


def test_an_empty_list_invites_who_may_start_and_says_so_to_who_may_not(sign_in):
    assert b"Start the first run" in sign_in("operator").get("/").content
    answer = sign_in("viewer").get("/").content
    assert b"No run yet" in answer
    assert b"Start the first run" not in answer


def test_a_run_is_shown_as_its_latest_attempt_stands(sign_in):
    attempt = make_run(name="demo", owner=make_user(), steps=2, nodes=False)
    Attempt.objects.create(run=attempt.run, number=2, config=attempt.config, state="queued")

    row = list_runs(RunFilter())[0][0]

    assert (row.attempt.number, row.attempt.state) == (2, "queued")
    assert "attempt 2" in sign_in("viewer").get("/").content.decode()


def test_filters_narrow_and_sorting_orders():
    make_run(name="beta", owner=make_user("bob", "operator"), steps=1, state="completed", nodes=False)
    make_run(name="alpha", owner=make_user(), steps=3, nodes=False)

    assert names(sort="name") == ["alpha", "beta"]
    assert names(sort="-step") == ["alpha", "beta"]
    assert names(state="over") == ["beta"]
    assert names(state="going") == ["alpha"]
    assert names(text="LPH") == ["alpha"]
    assert names(owner="bob") == ["beta"]


def test_live_rollouts_are_those_that_started_and_did_not_end():
    make_run(steps=1, groups_per_step=4, nodes=False)

    assert list_runs(RunFilter())[0][0].num_live == 4 * 2


def test_the_number_of_queries_does_not_grow_with_the_runs(sign_in, django_assert_max_num_queries):
    from django.db import connection

    client = sign_in("viewer")
    make_run(name="one", steps=1, nodes=False)
    client.get("/")
    with CaptureQueriesContext(connection) as few:
        client.get("/")
    for index in range(4):
        make_run(name=f"more-{index}", steps=1, groups_per_step=2, nodes=False)

    with django_assert_max_num_queries(len(few)):
        client.get("/")
    assert len(few) <= 14


def test_a_name_full_of_markup_is_only_text(sign_in):
    name = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    attempt = make_run(name=name, owner=make_user(), steps=1)
    for path in (
        "/",
        f"/runs/{attempt.run_id}",
        f"/runs/{attempt.run_id}/rollouts",
        f"/runs/new?from={attempt.run_id}",
    ):
        page = sign_in("admin").get(path).content.decode()
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path


def test_htmx_gets_only_the_table(sign_in):
    make_run(steps=1, nodes=False)

    page = sign_in("viewer").get("/", headers={"HX-Request": "true"}).content.decode()

    assert "<html" not in page
    assert "<table" in page
