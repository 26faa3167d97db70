"""A person and a whole running system, in Chromium: configure, start, watch tokens arrive, judge, stop; and what a
judgement does to what is trained.

From:  tests.end_to_end.tiny (every part a real process). Screenshots of each stage lie in pytest's directory.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from django.db import connections
from playwright.sync_api import Browser, Page, expect

from environments.models import Node, Rollout
from environments.rendering import load_renderer
from gyre_web.accounts.services import create_link, first_admin_link
from gyre_web.audit.models import AuditEntry
from gyre_web.review.models import Label
from tests.end_to_end.tiny import TinySystem, build_script, recipe, tiny_system
from tests.gyre_web.browser import chromium
from training.advantages import batch_advantages
from training.models import Attempt, Member
from training.services import check_config, config_to_toml

pytestmark = [pytest.mark.browser, pytest.mark.harness, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(500)]

TOKENS_PER_S = 40.0
"""A long answer takes some 25 s, in the middle of which the page is reloaded."""
PATIENCE_MS = 90_000
THOUGHTS = "".join(f"{i}. Ich prüfe „Größe“ → ≤ {i} ☂ und dann weiter.\n" for i in range(1, 17))
"""Characters of several tokens, so that a stream that is cut anywhere is cut within one of them."""


@pytest.fixture(scope="module")
def system(django_db_blocker) -> Iterator[TinySystem]:
    """Playwright's synchronous interface keeps an event loop in this thread, which Django must not mind."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with django_db_blocker.unblock(), tiny_system(tokens_per_s=TOKENS_PER_S) as running:
        yield running
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser, system) -> Iterator[Page]:
    """A fresh visitor. A complaint of any page fails the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=system.supervisor.address)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    expect.set_options(timeout=5_000)
    assert not complaints


@pytest.fixture
def shot(page, tmp_path):
    def take(name: str) -> None:
        page.screenshot(path=tmp_path / f"{name}.png")

    return take


def sign_in(page: Page, link: str) -> None:
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_title("Runs · Gyre")


def write_script(system: TinySystem, *, thoughts: str) -> None:
    """What engines that start from now on answer first: thoughts, then the usual."""
    script: list[Any] = [
        [pattern, [thoughts + answer for answer in answers] if isinstance(answers, list) else answers]
        for pattern, answers in build_script()
    ]
    connections["default"].close()
    (system.root / "script.json").write_text(json.dumps(script))


def steer(page: Page, wanted: str, reason: str) -> None:
    """From the run's page, through the explanation."""
    page.locator(f"[data-open='confirm-{wanted}']").click()
    dialog = page.locator(f"#confirm-{wanted}")
    dialog.locator("[name=reason]").fill(reason)
    dialog.locator(".button-primary").click()


# 1. The journey.


def test_from_the_first_link_to_a_stopped_run(system, page, shot):
    write_script(system, thoughts=THOUGHTS)
    link = first_admin_link()
    assert link
    sign_in(page, link)
    configure_and_start(page, shot)
    run_path = page.url
    attempt = Attempt.objects.get(run__name="from the browser")
    watch_it_become_live(page, shot)

    page.locator(".actions [data-key=w]").click()
    expect(page.locator(".wall-cell").first).to_contain_text("Ich prüfe")
    shot("wall")
    page.locator(".wall-cell").first.click()
    rollout = Rollout.objects.get(pk=page.url.split("?")[0].rsplit("/", 1)[1])
    seen = read_in_mid_stream(page, shot)
    label_by_keyboard(page, rollout)

    page.goto(run_path)
    steer(page, "stop", "seen enough")
    expect(page.locator(".run-state")).to_contain_text("Stopping")
    shot("stopping")
    assert_page_shows_what_was_recorded(system, page, rollout, seen, shot)
    page.goto(run_path)
    expect(page.locator(".run-state")).to_contain_text("Stopped")
    expect(page.locator("#liveness")).to_have_text("ended")
    shot("stopped")
    page.goto("/audit")
    stop = page.locator("tr", has_text="run.stop")
    expect(stop).to_contain_text("seen enough")
    expect(stop).to_contain_text("admin")
    shot("audit")
    attempt.refresh_from_db()
    assert attempt.state == Attempt.State.STOPPED
    assert AuditEntry.objects.filter(action="label.save", object_id=str(rollout.pk)).count() == 1


def tiny_toml() -> str:
    config, errors = check_config(recipe() | short(thoughtful=True))
    assert config, errors
    return config_to_toml(config)


def short(*, thoughtful: bool) -> dict[str, Any]:
    """Sections of a run that has every phase but evaluation."""
    sampled = {"max_tokens": 1200 if thoughtful else 300}
    budgets = {"max_sampled_tokens": 2400, "max_context_tokens": 4000}
    engine = {"kind": "scripted", "max_context_tokens": 4000}
    return {
        "warm_start": {"demonstrations": 3},
        "evaluation": {"tasks": 0},
        "sampling": sampled,
        "budgets": budgets,
        "engine": engine,
    }


def configure_and_start(page: Page, shot: Any) -> None:
    page.goto("/runs/new")
    page.locator("[name='model.name']").select_option("tiny")
    page.locator("[name='tasks.rollouts_per_group']").fill("1")
    page.locator("[name='engine.max_context_tokens']").fill("1000000")
    wrong = page.locator("[data-field='tasks.rollouts_per_group'] .control-error")
    expect(wrong).to_contain_text("Use at least 2")
    expect(page.locator("[data-field='engine.max_context_tokens'] .control-error")).to_contain_text("Use at most 4096")
    expect(page.locator("#start")).to_have_attribute("aria-disabled", "true")
    expect(page.locator("#verdict")).to_contain_text("tasks.rollouts_per_group")
    shot("wrong")
    page.locator("[name='tasks.rollouts_per_group']").fill("3")
    expect(wrong).to_be_hidden()
    page.locator("#tab-toml").click()
    page.locator("#toml").fill(tiny_toml())
    page.locator("#read-toml").click()
    expect(page.locator("[name='engine.max_context_tokens']")).to_have_value("4000")
    expect(page.locator("#start")).to_have_attribute("aria-disabled", "false")
    page.locator("[name=name]").fill("from the browser")
    expect(page.locator("#verdict")).to_have_text("Everything fits together.")
    page.locator("#tab-changes").click()
    shot("right")
    page.locator("#start").click()
    expect(page).to_have_title("from the browser · Gyre")


def watch_it_become_live(page: Page, shot: Any) -> None:
    """The page says by itself what the run does, from the first phase to the first rollouts."""
    expect(page.locator("#liveness")).to_have_text("live")
    expect(page.locator(".run-state")).to_contain_text("Warm")
    shot("warming")
    expect(page.locator(".run-state")).to_contain_text("Running")
    expect(page.locator(".heat-live").first).to_be_attached()
    shot("running")


def read_in_mid_stream(page: Page, shot: Any) -> list[str]:
    """Texts that the page showed of one answer, in order, with a reload among them."""
    text = page.locator(".live-text")
    seen = [grown(page, 40)]
    seen.append(grown(page, len(seen[-1]) + 20))
    shot("stream")
    page.reload()
    expect(text).to_be_visible()
    seen.append(text.inner_text())
    assert len(seen[-1]) >= len(seen[-2]), "a reload showed less than was there before"
    seen.append(grown(page, len(seen[-1]) + 20))
    shot("stream-after-reload")
    return seen


def grown(page: Page, length: int) -> str:
    """The answer that is being sampled, as soon as it has so many characters."""
    handle = page.wait_for_function(
        "n => { const t = document.querySelector('.live-text')?.firstChild?.data ?? ''; return t.length >= n && t; }",
        arg=length,
    )
    return str(handle.json_value())


def label_by_keyboard(page: Page, rollout: Rollout) -> None:
    page.keyboard.press("2")
    page.keyboard.press("k")
    page.keyboard.press("n")
    page.keyboard.type("thinks aloud, but to the point")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-label-status]")).to_contain_text("saved")
    expect(page.locator(".label-item")).to_contain_text("partial · keep")
    label = Label.objects.get(rollout=rollout)
    assert (label.verdict, label.keep, label.author_name) == ("partial", "keep", "admin")
    assert label.note == "thinks aloud, but to the point"


def assert_page_shows_what_was_recorded(
    system: TinySystem, page: Page, rollout: Rollout, seen: list[str], shot: Any
) -> None:
    """On a page that was open while the answer was sampled to its end: nothing lost, nothing doubled."""
    page.goto(f"/rollouts/{rollout.pk}")
    system.wait_for(lambda: Rollout.objects.get(pk=rollout.pk).state == Rollout.State.ENDED, "the rollout ends")
    expect(page.locator("[data-liveness]")).to_have_text("ended")
    expect(page.locator(".live-text")).to_have_count(0)
    shot("ended")
    nodes = list(Node.objects.filter(rollout=rollout).order_by("index"))
    sampled = [node for node in nodes if node.sampled]
    assert len(sampled) == 2
    answer = decode(rollout, sampled[0])
    assert answer.startswith(THOUGHTS)
    for text in seen:
        assert answer.startswith(text), "the page showed something else than what was sampled"
    expect(page.locator("section.node")).to_have_count(len(nodes))
    page.locator("[data-tab=tokens]").click()
    for node in sampled:
        section = page.locator(f'section.node[data-key="{node.index}"]')
        section.scroll_into_view_if_needed()
        expect(section.locator(".t")).to_have_count(len(node.ids) // 4)
        texts = section.locator(".t:not(.special):not(.part)").all_text_contents()
        assert "".join(texts).replace("↵\n", "\n") == decode(rollout, node)
    shot("tokens")


def decode(rollout: Rollout, node: Node) -> str:
    """What its sampled ids say, without the stop token: a token of the scripted engine is a byte."""
    ids = np.frombuffer(bytes(node.ids), dtype="<u4")[node.opener_length :].tolist()
    decoder = load_renderer(rollout.model).decoder()
    return "".join(map(decoder.push, ids)) + decoder.flush()


# 2. Review changes what is trained.


def test_an_override_from_the_browser_is_what_the_group_is_trained_with(system, page, shot):
    write_script(system, thoughts="")
    attempt = system.start(**short(thoughtful=False) | one_group())
    members = Member.objects.filter(group__attempt=attempt).select_related("rollout").order_by("slot")
    system.wait_for(lambda: members.filter(hold=True).count() == 3, "all members wait for a person")
    verified = {member.pk: member.rollout.reward or 0.0 for member in members}
    assert set(verified.values()) == {0.0, 1.0}
    judged = one_of_two_alike(list(members))

    beside = f"reward 0.25 (a person; verifier {judged.rollout.reward:.2f})"

    sign_in(page, link_of_admin())
    page.goto(f"/runs/{attempt.run_id}")
    steer(page, "pause", "somebody reads first")
    expect(page.locator(".run-state")).to_contain_text("Paused")
    shot("paused")
    page.goto(f"/groups/{judged.group_id}")
    page.locator(f"a[href='/rollouts/{judged.rollout_id}']").first.click()
    expect(page.locator("[data-label-gate]")).to_contain_text("Held for review")
    override(page, "0.25", "did half of it")
    expect(page.locator("[data-label-status]")).to_have_text("saved: changes what is trained")
    expect(page.locator("[data-header]")).to_contain_text(beside)
    shot("override")
    for member in members:
        if member.pk != judged.pk:
            page.goto(f"/rollouts/{member.rollout_id}")
            expect(page.locator("[data-label-gate]")).to_contain_text("Held for review")
            page.keyboard.press("1")
            page.keyboard.press("Control+Enter")
            expect(page.locator("[data-label-status]")).to_contain_text("saved")
    assert Attempt.objects.get(pk=attempt.pk).step == 0
    page.goto(f"/runs/{attempt.run_id}")
    steer(page, "run", "read")
    system.wait_for(lambda: Attempt.objects.get(pk=attempt.pk).step == 1, "the step is done")

    check_advantages(list(members.all()), judged, verified)
    page.goto(f"/groups/{judged.group_id}")
    expect(page.locator(".member", has_text="a person's")).to_contain_text(f"verifier {verified[judged.pk]:.2f}")
    shot("group")
    page.goto(f"/rollouts/{judged.rollout_id}")
    expect(page.locator("[data-header]")).to_contain_text(beside)
    expect(page.locator("[data-label-gate]")).to_contain_text("comes too late")
    override(page, "1", "on second thought")
    expect(page.locator("[data-label-status]")).to_contain_text("the group was already eaten")
    assert Label.objects.filter(rollout=judged.rollout).latest("created_at").effect == Label.Effect.TOO_LATE
    shot("too-late")
    check_advantages(list(members.all()), judged, verified)
    system.wait_until_over(attempt)


def one_of_two_alike(members: list[Member]) -> Member:
    """So that three different rewards come of its override: two alike and a third are normalised to the same."""
    rewards = [member.rollout.reward for member in members]
    return next(member for member in members if rewards.count(member.rollout.reward) == 2)


def one_group() -> dict[str, Any]:
    """The sections of a run that learns from one group, once a person has judged all of it."""
    return {
        "tasks": recipe()["tasks"] | {"groups_per_step": 1},
        "optimization": {"steps": 1, "precision": "fp32"},
        "review_gate": {"mode": "all"},
    }


def link_of_admin() -> str:
    from gyre_web.accounts.models import User

    admin, _ = User.objects.get_or_create(username="admin", defaults={"role": User.Role.ADMIN})
    return create_link(user=admin)


def override(page: Page, reward: str, reason: str) -> None:
    """By keyboard: without a reason it is refused."""
    page.keyboard.press("2")
    page.keyboard.press("r")
    page.keyboard.type(reward)
    page.keyboard.press("Control+Enter")
    expect(page.locator('[data-error="reason"]')).to_contain_text("Say why")
    page.keyboard.type(reason)
    page.keyboard.press("Control+Enter")


def check_advantages(members: list[Member], judged: Member, verified: dict[Any, float]) -> None:
    """Computed from the override, beside which the verifier's number stands as it was."""
    assert {member.pk: member.rollout.reward for member in members} == verified
    assert {member.pk: member.effective_reward for member in members} == {
        member.pk: 0.25 if member.pk == judged.pk else None for member in members
    }
    used = [0.25 if member.pk == judged.pk else verified[member.pk] for member in members]
    assert [member.reward for member in members] == used
    wanted = batch_advantages("grpo", [used])[0]
    assert [member.advantage for member in members] == pytest.approx(wanted, abs=1e-5)
    assert wanted != pytest.approx(batch_advantages("grpo", [list(verified.values())])[0])
    assert {member.disposition for member in members} == {Member.Disposition.TRAINED}
    assert {member.group.state for member in members} == {"eaten"}
