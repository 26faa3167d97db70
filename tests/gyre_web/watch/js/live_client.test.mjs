import assert from "node:assert/strict";
import test from "node:test";
import { backoffMs, LiveClient } from "../../../../static/js/watch/live_client.js";

class FakeSocket {
  constructor() {
    this.sent = [];
    this.readyState = 0;
  }
  send(text) { this.sent.push(JSON.parse(text)); }
  close() { this.readyState = 3; }
  open() { this.readyState = 1; this.onopen(); }
  say(message) { this.onmessage({ data: new TextEncoder().encode(JSON.stringify(message)).buffer }); }
  lose(code = 1006) { this.readyState = 3; this.onclose({ code, reason: "" }); }
}

const events = (first, last, epoch = 1) => ({
  op: "events", stream: "rollout:r", epoch, lag: 0,
  entries: Array.from({ length: last - first + 1 }, (_, i) => [first + i, "tokens", { i: first + i }]),
});

function connected(t) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const sockets = [];
  const seen = [];
  const states = [];
  const client = new LiveClient("ws://x/live", {
    socket: () => { const s = new FakeSocket(); sockets.push(s); return s; },
    onStatus: (status) => states.push(status.state),
  });
  client.subscribe("rollout:r", [1, 4], { onEntries: (entries) => seen.push(...entries.map((e) => e.n)), onReset: () => seen.push("reset") });
  sockets[0].open();
  return { client, sockets, seen, states };
}

test("it subscribes from where the snapshot ends, and acknowledges what it was given", (t) => {
  const { sockets, seen } = connected(t);
  assert.deepEqual(sockets[0].sent[0], { op: "subscribe", stream: "rollout:r", after: [1, 4] });
  sockets[0].say(events(5, 7));
  assert.deepEqual(seen, [5, 6, 7]);
  assert.deepEqual(sockets[0].sent[1], { op: "ack", stream: "rollout:r", position: [1, 7] });
});

test("after a loss it goes on from its last entry, and a frame sent twice counts once", (t) => {
  const { sockets, seen, states } = connected(t);
  sockets[0].say(events(5, 7));
  sockets[0].lose();
  assert.equal(states.at(-1), "reconnecting");
  t.mock.timers.tick(30_000);
  sockets[1].open();
  assert.deepEqual(sockets[1].sent[0].after, [1, 7]);
  sockets[1].say(events(6, 9));
  assert.deepEqual(seen, [5, 6, 7, 8, 9]);
  assert.equal(states.at(-1), "live");
});

test("a socket that never answers is given up after ten seconds", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const sockets = [];
  const client = new LiveClient("ws://x/live", { socket: () => { const s = new FakeSocket(); sockets.push(s); return s; } });
  client.subscribe("rollout:r", null, {});
  t.mock.timers.tick(9_999);
  assert.equal(client.status.state, "connecting");
  t.mock.timers.tick(1);
  assert.equal(client.status.state, "reconnecting");
  t.mock.timers.tick(1_500);
  assert.equal(sockets.length, 2);
});

test("a stream that was reset waits for a new subscribe, also over a reconnect", (t) => {
  const { client, sockets, seen } = connected(t);
  sockets[0].say({ op: "reset", stream: "rollout:r", reason: "trimmed", lag: 0 });
  assert.deepEqual(seen, ["reset"]);
  sockets[0].lose();
  t.mock.timers.tick(30_000);
  sockets[1].open();
  assert.deepEqual(sockets[1].sent, []);
  client.subscribe("rollout:r", [2, 1], {});
  assert.deepEqual(sockets[1].sent[0].after, [2, 1]);
});

test("signed out is final: no reconnect", (t) => {
  const { client, sockets } = connected(t);
  sockets[0].lose(4001);
  t.mock.timers.tick(60_000);
  assert.equal(client.status.state, "ended");
  assert.equal(client.status.reason, "signed out");
  assert.equal(sockets.length, 1);
});

test("backoff doubles from 1 to 30 s with jitter", () => {
  assert.deepEqual([0, 1, 2, 3, 9].map((n) => backoffMs(n, () => 1)), [1000, 2000, 4000, 8000, 30_000]);
  assert.equal(backoffMs(4, () => 0), 8000);
  assert.equal(backoffMs(0, () => 0), 1000);
});
