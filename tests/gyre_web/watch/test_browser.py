"""The rollout page in Chromium: tokens arrive as they are sampled, a reload in mid-stream loses nothing, labels by keyboard."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from playwright.sync_api import Browser, Page, expect

from environments import live
from environments.models import Call, Rollout
from gyre_web.asgi import application
from gyre_web.review.models import Label
from tests.gyre_web.browser import chromium
from tests.gyre_web.watch.makers import call_event, make_call, make_member, make_user, node_event, tokens_event
from tests.gyre_web.watch.world import World, build_world
from training.models import Member

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module", autouse=True)
def allow_django_beside_playwright() -> Iterator[None]:
    """Playwright's synchronous interface keeps an event loop in this thread."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    yield
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def site() -> Iterator[str]:
    """The real web application on a free port, on the test's database."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(15)


class Stream:
    """An answer that is being sampled: rows and log as the gateway writes them."""

    def __init__(self) -> None:
        self.rollout: Rollout = build_world(turns=4)
        self.member: Member = make_member(self.rollout)
        self.prompt = self.rollout.nodes.filter(branch_role="main", role="user").latest("index").index
        self.call: Call = make_call(self.rollout, self.rollout.sessions.get(), 50, prompt_node=self.prompt)
        self.text = ""
        live.append_sync(self.rollout.pk, [call_event(self.call)])

    def sample(self, text: str) -> None:
        live.append_sync(self.rollout.pk, [tokens_event(self.call, self.prompt, len(self.text), text, version=6)])
        self.text += text

    def finish(self) -> None:
        world = World(self.rollout)
        world.depth[self.prompt] = 5000
        index = world.add(self.prompt, "assistant", self.text, sampled=True)
        self.call.state, self.call.answer_node, self.call.duration_s = "completed", index, 2.0
        self.call.save()
        live.append_sync(
            self.rollout.pk, [node_event(self.rollout.nodes.get(index=index), self.call), call_event(self.call)]
        )


def open_page(browser: Browser, site: str, path: str, role: str = "reviewer", **options: object) -> Page:
    user = make_user(role)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_cookies([{"name": "sessionid", "value": str(session.session_key), "url": site}])
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: pytest.fail(f"JavaScript: {error}"))
    page.goto(site + path)
    expect(page.locator("[data-liveness]")).to_have_text("live", timeout=20_000)
    return page


def shown_tokens(page: Page) -> str:
    return page.locator(".live-text").inner_text()


def test_tokens_arrive_as_they_are_sampled_and_a_reload_in_mid_stream_loses_nothing(browser, site):
    stream = Stream()
    stream.sample("The failing case")
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}")
    expect(page.locator(".live-text")).to_have_text("The failing case")
    stream.sample(" is the empty list,")
    expect(page.locator(".live-text")).to_have_text("The failing case is the empty list,")
    page.reload()
    stream.sample(" so I add a guard.")
    expect(page.locator(".live-text")).to_have_text("The failing case is the empty list, so I add a guard.")
    stream.finish()
    last = page.locator("section.node").last
    expect(last.locator(".node-id")).to_have_text("n15")
    expect(last.locator(".node-body")).to_have_text("The failing case is the empty list, so I add a guard.")
    expect(page.locator(".live-text")).to_have_count(0)
    page.context.close()


def test_reading_is_not_moved_while_tokens_come_and_following_is_taken_up_again(browser, site):
    stream = Stream()
    stream.sample("begin ")
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}")
    expect(page.locator(".live-text")).to_be_visible()
    page.locator("[data-scroller]").evaluate("element => { element.scrollTop = 200; }")
    expect(page.locator("[data-more]")).to_be_visible()
    page.wait_for_timeout(300)
    before = page.locator("[data-scroller]").evaluate("element => element.scrollTop")
    stream.sample("and go on " * 30)
    expect(page.locator("[data-more]")).to_have_text("▼ 300 new")
    assert page.locator("[data-scroller]").evaluate("element => element.scrollTop") == before
    page.keyboard.press("f")
    expect(page.locator("[data-more]")).to_be_hidden()
    expect(page.locator(".live-text")).to_be_in_viewport()
    page.context.close()


def test_an_address_leads_to_the_token_and_keys_lead_on(browser, site):
    stream = Stream()
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}?at=n2.4&lens=version")
    expect(page.locator(".t.chosen")).to_have_attribute("data-i", "4")
    expect(page.locator("[data-inspector]")).to_contain_text("Token 4 of n2")
    expect(page.locator("[data-inspector]")).to_contain_text("log p")
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-inspector]")).to_contain_text("Token 5 of n2")
    assert "at=n2.5" in page.url
    page.keyboard.press("t")
    assert "lens=mask" in page.url
    page.keyboard.press("Escape")
    expect(page.locator("[data-inspector]")).to_contain_text("Node n2")
    page.keyboard.press("j")
    expect(page.locator("[data-inspector]")).to_contain_text("Node n4")
    page.context.close()


def test_find_searches_the_server_and_goes_to_the_hit(browser, site):
    stream = Stream()
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}")
    page.keyboard.press("/")
    page.keyboard.type("careful engineer")
    page.keyboard.press("Enter")
    expect(page.locator("[data-find-result]")).to_have_text("1 of 1 nodes")
    expect(page.locator('.node[data-key="0"]')).to_be_in_viewport()
    page.context.close()


def test_a_judgement_by_keyboard_reaches_training(browser, site):
    stream = Stream()
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}")
    page.keyboard.press("4")
    page.keyboard.press("r")
    page.keyboard.type("0.25")
    page.keyboard.press("Control+Enter")
    expect(page.locator('[data-error="reason"]')).to_contain_text("Say why")
    page.keyboard.type("edits the test")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-label-status]")).to_have_text("saved: changes what is trained")
    expect(page.locator(".label-item")).to_contain_text("reward hack · reward 0.25")
    stream.member.refresh_from_db()
    assert stream.member.effective_reward == 0.25
    assert Label.objects.get().verdict == "hack"
    page.context.close()


def test_a_judgement_made_without_network_is_saved_when_it_is_back(browser, site):
    stream = Stream()
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}")
    page.context.set_offline(True)
    page.keyboard.press("1")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-label-status]")).to_contain_text("not sent yet")
    assert Label.objects.count() == 0
    page.context.set_offline(False)
    expect(page.locator("[data-label-status]")).to_contain_text("saved", timeout=20_000)
    assert Label.objects.get().verdict == "success"
    page.context.close()


def test_a_viewer_sees_no_label_panel_and_hostile_text_stays_text(browser, site):
    stream = Stream()
    stream.sample("<img src=x onerror=alert(1)><script>alert(2)</script>\x1b[31mred")
    page = open_page(browser, site, f"/rollouts/{stream.rollout.pk}", role="viewer")
    expect(page.locator(".live-text")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator(".live-text img, .live-text script").count() == 0
    assert page.locator("[data-label-panel]").count() == 0
    page.context.close()
