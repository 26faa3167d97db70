"""The page's state and views in node, and the property that ties them to the server's snapshot."""

import random
from typing import Any

import orjson
import pytest
from asgiref.sync import async_to_sync

from environments import live
from environments.models import Call, Rollout
from gyre_web.watch.selectors import build_snapshot, load_rollout
from tests.gyre_web.watch.makers import (
    bytes_ids,
    call_event,
    make_call,
    make_node,
    make_rollout,
    make_session,
    node_event,
    tokens_event,
)
from tests.gyre_web.watch.node import ROOT, run_node

pytestmark = pytest.mark.slow

TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/gyre_web").glob("*/js/*.test.mjs"))


def test_the_modules_do_what_their_tests_in_node_say():
    assert "# fail 0" in run_node("--test", "--test-reporter=tap", *TESTS)


def snapshot_of(rollout: Rollout) -> dict[str, Any]:
    loaded = load_rollout(rollout.pk)
    assert loaded is not None
    return orjson.loads(orjson.dumps(build_snapshot(loaded, at=0), default=str))


def log_after(rollout: Rollout, position: list[int] | None) -> list[list[Any]]:
    page = async_to_sync(live.read)(rollout.pk, (position[0], position[1]) if position else None, 10_000)
    assert not page.reset
    return [[e.epoch, e.n, e.kind, e.data] for e in page.entries]


class Play:
    """A rollout that does what rollouts do, in a random order of a fixed seed: rows first, then the log, as the gateway."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rollout = make_rollout()
        self.session = make_session(self.rollout)
        self.open: list[tuple[Call, int, str]] = []
        self.num_nodes = 0
        self.num_calls = 0
        self.add_node(None, "user")

    def say(self, *events: tuple[str, dict[str, Any]]) -> None:
        live.append_sync(self.rollout.pk, list(events))

    def add_node(self, parent: int | None, role: str, text: str = "hello", call: Call | None = None) -> int:
        index, self.num_nodes = self.num_nodes, self.num_nodes + 1
        sampled = call is not None
        node = make_node(
            self.rollout,
            index,
            parent,
            {"role": role, "content": text},
            ids=[258, *bytes_ids(text), 257],
            sampled=sampled,
        )
        if call is not None:
            call.answer_node, call.state, call.duration_s = index, self.random.choice(["completed", "aborted"]), 1.5
            call.save()
            self.say(node_event(node, call), call_event(call))
        else:
            self.say(node_event(node))
        return index

    def act(self) -> None:
        self.random.choice([self.begin, self.sample, self.sample, self.sample, self.finish, self.print, self.fork])()

    def begin(self) -> None:
        prompt = self.add_node(self.num_nodes - 1, "tool", "output")
        call = make_call(self.rollout, self.session, self.num_calls, prompt_node=prompt)
        self.num_calls += 1
        self.say(call_event(call))
        self.open.append((call, prompt, ""))

    def sample(self) -> None:
        if self.open:
            at = self.random.randrange(len(self.open))
            call, prompt, text = self.open[at]
            start = len(text) if self.random.random() < 0.8 else self.random.randint(0, len(text))
            more = "".join(self.random.choice("abc \n") for _ in range(self.random.randint(1, 5)))
            self.say(tokens_event(call, prompt, start, more, version=self.random.randint(1, 3)))
            self.open[at] = (call, prompt, text[:start] + more)

    def finish(self) -> None:
        if self.open:
            call, prompt, text = self.open.pop(self.random.randrange(len(self.open)))
            self.add_node(prompt, "assistant", text, call)

    def fork(self) -> None:
        self.add_node(self.random.randrange(self.num_nodes), "user", "edited")

    def print(self) -> None:
        self.say(("output", {"text": self.random.choice(["\x1b[31mx\x1b[0m", "line\n"])}))

    def end(self) -> None:
        for call, _, _ in self.open:
            call.state = "failed"
            call.save()
            self.say(call_event(call))
        self.say(("verifier", {"text": "1 passed\n"}))
        Rollout.objects.filter(pk=self.rollout.pk).update(state="ended", outcome="completed", reward=0.75)
        self.say(("state", {"state": "ended", "outcome": "completed", "reward": 0.75, "error": ""}))


@pytest.mark.django_db(transaction=True)
def test_a_snapshot_with_the_entries_after_it_is_a_fresh_snapshot():
    cases = []
    for seed in range(12):
        play = Play(seed)
        taken = []
        for step in range(40):
            play.act()
            if step % 7 == 0:
                taken.append(snapshot_of(play.rollout))
        if seed % 2:
            play.end()
        fresh = snapshot_of(play.rollout)
        cases += [
            {
                "name": f"seed {seed}, snapshot {i}",
                "snapshot": s,
                "entries": log_after(play.rollout, s["position"]),
                "fresh": fresh,
            }
            for i, s in enumerate(taken)
        ]
    assert "equal" in run_node("tests/gyre_web/watch/js/property.mjs", stdin=orjson.dumps(cases))


@pytest.mark.django_db(transaction=True)
def test_rows_newer_than_the_snapshots_position_are_not_applied_twice():
    play = Play(99)
    play.begin()
    play.sample()
    old = snapshot_of(play.rollout)
    play.finish()
    newer_rows = {**snapshot_of(play.rollout), "position": old["position"], "tail": old["tail"]}
    case = {
        "name": "late",
        "snapshot": newer_rows,
        "entries": log_after(play.rollout, old["position"]),
        "fresh": snapshot_of(play.rollout),
    }
    assert "equal" in run_node("tests/gyre_web/watch/js/property.mjs", stdin=orjson.dumps([case]))
