import assert from "node:assert/strict";
import test from "node:test";
import { newKey, Outbox } from "../../../../static/js/review/outbox.js";

class Memory {
  constructor() { this.values = new Map(); }
  getItem(key) { return this.values.get(key) ?? null; }
  setItem(key, value) { this.values.set(key, value); }
}
const item = (key, rollout = "r") => ({ url: `/rollouts/${rollout}/labels`, rollout, judgement: { client_key: key, verdict: "success" } });

function outboxOf(t, answers) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const posts = [];
  const results = [];
  const storage = new Memory();
  const post = async (url, data) => {
    posts.push(data.client_key);
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer === "lost") throw new TypeError("Failed to fetch");
    return answer;
  };
  return { posts, results, storage, outbox: new Outbox(storage, post, (result) => results.push(result)) };
}
const saved = { status: 200, body: { label: { id: 1 } } };

test("a judgement leaves the outbox with the server's acknowledgement", async (t) => {
  const { outbox, results, posts } = outboxOf(t, [saved]);
  await outbox.add(item("a"));
  assert.deepEqual([posts, outbox.items(), results[0].saved], [["a"], [], { id: 1 }]);
});

test("without network it stays, also for a page that is loaded anew, and is sent again with the same key", async (t) => {
  const { outbox, results, posts, storage } = outboxOf(t, ["lost", "lost", saved]);
  await outbox.add(item("a"));
  assert.deepEqual(results, [{ waiting: 1 }]);
  assert.equal(JSON.parse(storage.getItem("gyre.outbox"))[0].judgement.client_key, "a");
  await outbox.send();
  t.mock.timers.tick(30_000);
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(posts, ["a", "a", "a"]);
  assert.deepEqual(outbox.items(), []);
});

test("a server in trouble, or a sign-in page in place of an answer, keeps it", async (t) => {
  const { outbox } = outboxOf(t, [{ status: 502, body: null }, { status: 200, body: null }]);
  await outbox.add(item("a"));
  assert.equal(outbox.items().length, 1);
  await outbox.send();
  assert.equal(outbox.items().length, 1);
});

test("a refusal comes back with its fields and is not sent again", async (t) => {
  const { outbox, results } = outboxOf(t, [{ status: 422, body: { errors: [{ field: "reason", message: "Say why." }] } }]);
  await outbox.add(item("a"));
  assert.deepEqual(results[0].refused, [{ field: "reason", message: "Say why." }]);
  assert.deepEqual(outbox.items(), []);
});

test("judgements are sent in order", async (t) => {
  const { outbox, posts } = outboxOf(t, ["lost", saved]);
  await outbox.add(item("a"));
  await outbox.add(item("b", "s"));
  assert.deepEqual(posts, ["a", "a", "b"]);
});

test("keys fit the server's column and differ", () => {
  assert.match(newKey(), /^[0-9a-f]{32}$/);
  assert.notEqual(newKey(), newKey());
});
