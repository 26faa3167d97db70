"""Pages of runs in Chromium: they fit, they complain of nothing, the form answers while one types."""

import os

import pytest
from django.test import Client
from playwright.sync_api import expect

from tests.gyre_web.browser import open_tab
from tests.gyre_web.factories import make_catalog, make_run, make_user
from training.models import Attempt, Run

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def session(transactional_db, monkeypatch):
    monkeypatch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    client = Client()
    client.force_login(make_user())
    return client.session.session_key


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_every_page_fits_its_window_and_the_browser_complains_of_nothing(live_server, session, theme, width):
    attempt = make_run(steps=3, groups_per_step=4)
    Attempt.objects.create(
        run=make_run(name="b", steps=1, state="failed", nodes=False).run, number=2, config=attempt.config
    )
    group, task = attempt.groups.first().pk, attempt.groups.first().task_id
    paths = [
        "/", "/runs/new", f"/runs/{attempt.run_id}", f"/runs/{attempt.run_id}/rollouts?outcome=completed",
        f"/groups/{group}", "/tasks", f"/tasks/{task}", "/models", "/harnesses", "/cluster", "/audit", "/people",
        "/account", "/api/docs",
    ]  # fmt: skip
    with open_tab(live_server.url, session, theme=theme, width=width) as tab:
        for path in paths:
            tab.open(path)
            assert tab.overflow() <= 0, path
            if path == f"/runs/{attempt.run_id}":
                tab.page.wait_for_selector(".plot .scatterlayer")
        assert tab.complaints == []


def test_the_form_marks_what_is_wrong_while_typing_and_starts_when_it_is_right(live_server, session):
    make_catalog()
    with open_tab(live_server.url, session) as tab:
        tab.open("/runs/new")
        page = tab.page
        page.fill("[name='evaluation.tasks']", "4")
        page.fill("[name='tasks.rollouts_per_group']", "1")
        page.wait_for_selector("[data-field='tasks.rollouts_per_group'] .control-error:not([hidden])")
        assert page.get_attribute("#start", "aria-disabled") == "true"

        page.fill("[name='tasks.rollouts_per_group']", "4")
        page.wait_for_selector("#start[aria-disabled='false']")
        assert "tasks.rollouts_per_group" in page.inner_text("#differences")
        page.click("#tab-toml")
        toml = page.input_value("#toml")
        page.fill("#toml", toml.replace("rollouts_per_group = 4", "rollouts_per_group = 5"))
        page.click("#read-toml")
        expect(page.locator("[name='tasks.rollouts_per_group']")).to_have_value("5")
        page.wait_for_selector("#start[aria-disabled='false']")
        page.fill("[name=name]", "from the browser")
        page.wait_for_selector("#start[aria-disabled='false']")
        page.click("#start")
        page.wait_for_url("**/runs/*")
        assert tab.complaints == []
    assert Run.objects.get(name="from the browser").attempts.get().config["tasks"]["rollouts_per_group"] == 5


def test_a_run_is_paused_after_an_explanation_and_the_page_follows(live_server, session):
    attempt = make_run(steps=1, nodes=False)
    with open_tab(live_server.url, session) as tab:
        tab.open(f"/runs/{attempt.run_id}")
        tab.page.click("[data-open='confirm-pause']")
        assert "No new groups are dispatched" in tab.page.inner_text("#confirm-pause")
        tab.page.fill("#confirm-pause [name=reason]", "lunch")
        tab.page.click("#confirm-pause .button-primary")
        tab.page.wait_for_selector("[data-open='confirm-run']")
        Attempt.objects.filter(pk=attempt.pk).update(phase="Pausing: 2 rollouts finish")
        tab.page.wait_for_selector("text=Pausing: 2 rollouts finish")
        assert tab.complaints == []
    attempt.refresh_from_db()
    assert attempt.wanted == "pause"


def test_a_hint_explains_a_number_and_escape_closes_it(live_server, session):
    attempt = make_run(steps=1, nodes=False)
    with open_tab(live_server.url, session) as tab:
        tab.open(f"/runs/{attempt.run_id}")
        tab.page.click(".tile .hint")
        assert "reward_mean" in tab.page.inner_text(".popover:popover-open")
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_selector(".popover:popover-open", state="detached")
        tab.page.keyboard.press("?")
        assert tab.page.is_visible("#keys[open]")
