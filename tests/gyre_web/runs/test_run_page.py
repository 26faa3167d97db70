"""One run's page: figures worked by hand, steering, and what it costs."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from gyre_web.audit.models import AuditEntry
from gyre_web.runs.heat import load_heat
from gyre_web.runs.metric_keys import CHARTS
from gyre_web.runs.run_page import build_series, build_tiles, load_chart_data
from gyre_web.runs.strip import build_strip, build_ticks
from tests.gyre_web.factories import RunFactory, make_run
from training.metrics import DEFINITIONS
from training.models import Attempt, Cell, Member

pytestmark = pytest.mark.django_db
T0 = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).isoformat()


def test_a_lane_shows_each_role_for_as_long_as_it_lasted():
    cell = Cell(index=0, history=[[at(0), "serves"], [at(60), "turning"], [at(70), "trains"]])

    strip = build_strip(
        cells=[cell], published=[(1, T0 + timedelta(seconds=80))], start=T0, end=T0 + timedelta(seconds=100)
    )

    assert [(b.role, b.x, b.width) for b in strip.lanes[0].blocks] == [
        ("serves", 0, 60),
        ("turning", 60, 10),
        ("trains", 70, 30),
    ]
    assert strip.lanes[0].shares == {"serves": 0.6, "turning": 0.1, "trains": 0.3}
    assert (strip.versions[0].x, strip.versions[0].label) == (80, "v1")


def test_a_window_cuts_what_began_before_it():
    cell = Cell(index=0, history=[[at(0), "serves"], [at(90), "trains"]])

    strip = build_strip(cells=[cell], published=[], start=T0 + timedelta(seconds=80), end=T0 + timedelta(seconds=100))

    assert [(b.role, b.x, b.width) for b in strip.lanes[0].blocks] == [("serves", 0, 50), ("trains", 50, 50)]


def test_there_are_never_more_than_nine_time_marks():
    for seconds in (5, 100, 4000, 90_000, 5_000_000):
        assert 1 <= len(build_ticks(seconds)) <= 9


def test_the_heat_row_draws_every_member_by_its_reward_and_fate():
    attempt = make_run(steps=1, groups_per_step=2, rollouts_per_group=4, nodes=False)
    member = Member.objects.filter(group__index=0, rollout__reward__isnull=False).first()
    Member.objects.filter(pk=member.pk).update(effective_reward=1.0)

    heat = load_heat(attempt)

    assert [len(column.cells) for column in heat.columns] == [4, 4, 4, 4]
    assert "judged" in {cell.shape for cell in heat.columns[0].cells}
    assert {cell.shape for cell in heat.columns[2].cells} <= {
        "scored",
        "held",
        "live",
        "queued",
        "excluded",
        "unscored",
    }
    assert heat.columns[0].first_of_step
    assert not heat.columns[1].first_of_step


def test_the_tiles_say_reward_and_its_change():
    attempt = RunFactory(groups_per_step=2).make(steps=3, nodes=False)

    tiles = {tile.label: tile for tile in build_tiles(attempt)}

    assert tiles["Reward"].note.endswith("since step 1")
    assert tiles["Sampling"].value == "184"
    assert tiles["Staleness"].value == "0"


def test_a_run_without_a_step_shows_dashes_and_no_zeros(sign_in):
    attempt = Attempt.objects.create(
        run=make_run(steps=1, nodes=False).run, number=2, config=make_run(name="b", steps=1, nodes=False).config
    )

    tiles = build_tiles(attempt)

    assert {tile.value for tile in tiles if tile.label != "Staleness"} == {"–"}
    assert sign_in("viewer").get(f"/runs/{attempt.run_id}").status_code == 200


def test_a_cell_that_did_nothing_yet_is_shown_without_a_past(sign_in):
    attempt = make_run(steps=1, nodes=False)
    Cell.objects.create(attempt=attempt, index=1)

    pages = [sign_in("viewer").get(path).status_code for path in (f"/runs/{attempt.run_id}", "/")]
    Cell.objects.filter(attempt=attempt).update(history=[])
    pages += [sign_in("viewer").get(path).status_code for path in (f"/runs/{attempt.run_id}", "/")]

    assert pages == [200] * 4


def test_a_failed_run_says_why(sign_in):
    attempt = make_run(state="failed", reason="The trainer ran out of memory.", steps=1, nodes=False)

    assert b"The trainer ran out of memory." in sign_in("viewer").get(f"/runs/{attempt.run_id}").content


def test_chart_data_holds_each_step_of_each_series():
    attempt = make_run(steps=3, nodes=False)

    charts = {chart["id"]: chart for chart in load_chart_data(attempt)["charts"]}

    assert charts["reward"]["series"][0]["x"] == [1, 2, 3]
    assert charts["heldout"]["series"][0]["x"] == [0, 3]
    assert charts["memory"]["series"][0]["y"][0] == pytest.approx(5.2)
    assert all(len(series["x"]) == len(series["y"]) for chart in charts.values() for series in chart["series"])


def test_every_charted_number_is_one_that_training_defines():
    for chart in CHARTS:
        for series in chart.series:
            assert series.key in DEFINITIONS, series.key


def test_a_very_long_series_is_thinned_and_keeps_its_last_point():
    chart = next(chart for chart in CHARTS if chart.id == "entropy")
    points = {("policy", "entropy"): (list(range(1, 5001)), [0.0] * 5000)}

    series = build_series(chart, points)[0]

    assert len(series["x"]) <= 1501
    assert (series["x"][0], series["x"][-1]) == (1, 5000)


def test_steering_asks_the_service_and_is_audited_with_its_reason(sign_in):
    attempt = make_run(steps=1, nodes=False)
    client = sign_in("operator")

    client.post(f"/runs/{attempt.run_id}/steer", {"wanted": "pause", "reason": "lunch"})

    attempt.refresh_from_db()
    assert attempt.wanted == "pause"
    entry = AuditEntry.objects.get(action="run.pause")
    assert (entry.user_name, entry.reason, entry.before["wanted"], entry.after["wanted"]) == (
        "a-operator",
        "lunch",
        "run",
        "pause",
    )
    assert entry.request_id


def test_what_cannot_be_done_is_explained_and_not_audited(sign_in):
    attempt = make_run(steps=1, state="completed", nodes=False)

    page = sign_in("operator").post(f"/runs/{attempt.run_id}/steer", {"wanted": "pause"}, follow=True)

    assert b"is over" in page.content
    assert not AuditEntry.objects.filter(action="run.pause").exists()


def test_only_what_is_possible_is_offered(sign_in):
    running = sign_in("operator").get(f"/runs/{make_run(name='a', steps=1, nodes=False).run_id}").content.decode()
    over = (
        sign_in("operator")
        .get(f"/runs/{make_run(name='b', steps=1, state='stopped', nodes=False).run_id}")
        .content.decode()
    )

    assert 'data-open="confirm-pause"' in running
    assert 'data-open="confirm-run"' not in running
    assert 'data-open="confirm-' not in over
    assert "confirm-cancel" not in sign_in("viewer").get(f"/runs/{Attempt.objects.first().run_id}").content.decode()


def test_the_live_fragment_replaces_head_and_rest_out_of_band(sign_in):
    attempt = make_run(steps=1, nodes=False)

    page = sign_in("viewer").get(f"/runs/{attempt.run_id}", headers={"HX-Request": "true"}).content.decode()

    assert "<html" not in page
    assert page.count('hx-swap-oob="true"') == 2


def test_the_page_costs_no_more_for_more_groups(sign_in):
    from django.db import connection

    client = sign_in("operator")
    small = make_run(name="small", steps=1, groups_per_step=2, nodes=False)
    large = make_run(name="large", steps=4, groups_per_step=6, nodes=False)
    client.get(f"/runs/{small.run_id}")
    counts = []
    for attempt in (small, large):
        with CaptureQueriesContext(connection) as queries:
            client.get(f"/runs/{attempt.run_id}")
        counts.append(len(queries))

    assert counts[0] == counts[1] <= 26
