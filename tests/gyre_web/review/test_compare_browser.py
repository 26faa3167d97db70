"""Judging pairs by keyboard in Chromium, and the pages of kinds, exports and models: they fit and complain of nothing."""

import os

import pytest
from django.test import Client
from playwright.sync_api import expect

from environments.models import Node
from gyre_web.review.models import Label, PairPreference
from tests.gyre_web.browser import open_tab
from tests.gyre_web.factories import make_run, make_user
from training.models import Dataset, Group

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def session(transactional_db, monkeypatch):
    monkeypatch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    client = Client()
    client.force_login(make_user())
    return client.session.session_key


def test_a_pair_is_judged_by_keyboard_and_the_next_one_comes(live_server, session):
    attempt = make_run(steps=1, groups_per_step=1, rollouts_per_group=3)
    with open_tab(live_server.url, session) as tab:
        tab.open(f"/review/pairs/next?run={attempt.run_id}")
        first = tab.page.url
        tab.page.keyboard.press("ArrowRight")
        expect(tab.page.locator('[data-choice="b"]')).to_have_attribute("aria-checked", "true")
        tab.page.keyboard.press("r")
        tab.page.keyboard.type("shorter")
        tab.page.keyboard.press("Control+Enter")
        tab.page.wait_for_url(lambda url: url != first)
        assert PairPreference.objects.get().reason == "shorter"
        tab.page.keyboard.press("j")
        expect(tab.page.locator(".compare-row.is-here")).to_have_count(1)
        assert tab.complaints == []


def test_a_turn_is_marked_by_keyboard_and_saved_with_the_label(live_server, session):
    attempt = make_run(steps=1, groups_per_step=1, rollouts_per_group=2)
    rollout = attempt.groups.first().members.first().rollout
    with open_tab(live_server.url, session) as tab:
        tab.open(f"/rollouts/{rollout.pk}?at=n2")
        marks = tab.page.locator("[data-marks]")
        tab.page.locator("[data-column]").wait_for()
        tab.page.wait_for_function("new URLSearchParams(location.search).get('at')")
        tab.page.keyboard.press("-")
        expect(marks).to_have_text("n2 wrong")
        tab.page.keyboard.press("Control+Enter")
        expect(tab.page.locator("[data-label-status]")).to_contain_text("saved")
        assert Label.objects.get().turns == {"2": False}


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_the_pages_fit_their_window_and_the_browser_complains_of_nothing(live_server, session, theme, width):
    attempt = make_run(steps=2, groups_per_step=2)
    group = Group.objects.filter(step__isnull=False).first()
    a, b = [member.rollout_id for member in group.members.order_by("slot")[:2]]
    Node.objects.filter(rollout=b, index=2).update(message={"role": "assistant", "content": "x" * 3000})
    Dataset.objects.create(name="good", kind="rollouts", items=[str(a)], num_items=1, digest="0" * 64)
    paths = [
        f"/compare?a={a}&b={b}", f"/groups/{group.pk}", "/exports", "/evaluations", "/models",
        f"/models/{a_model(a)}", "/runs/new?kind=supervised", "/runs/new?kind=evaluation", f"/runs/{attempt.run_id}",
    ]  # fmt: skip
    with open_tab(live_server.url, session, theme=theme, width=width) as tab:
        for path in paths:
            tab.open(path)
            tab.page.wait_for_timeout(150)
            assert tab.overflow() <= 0, path
            if "kind=supervised" in path:
                expect(tab.page.locator("#section-supervised")).to_be_visible()
                expect(tab.page.locator("#section-objective")).to_be_hidden()
        assert tab.complaints == []


def a_model(rollout_id):
    from environments.models import Rollout

    return Rollout.objects.get(pk=rollout_id).model_id
