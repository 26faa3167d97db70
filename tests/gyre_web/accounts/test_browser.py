"""The first minute of a newcomer: the printed link, one click, the list of runs."""

import os

import pytest

from gyre_web.accounts.services import first_admin_link
from tests.gyre_web.browser import open_tab

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_the_first_link_signs_in_with_one_click_and_only_once(live_server, transactional_db, monkeypatch):
    monkeypatch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    link = first_admin_link()
    with open_tab(live_server.url, session="none") as tab:
        tab.open(link)
        tab.page.click("form button")
        tab.page.wait_for_url(live_server.url + "/**")
        tab.open("/")
        assert "sign-in" not in tab.page.url
        assert tab.page.title().startswith("Runs")
    with open_tab(live_server.url, session="none") as stranger:
        stranger.open(link)
        assert stranger.page.locator("form button").count() == 0
