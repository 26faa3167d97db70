import assert from "node:assert/strict";
import test from "node:test";
import { applyEvent, emptyState } from "../../../../static/js/watch/rollout_data.js";

const entry = (n, kind, data) => ({ epoch: 1, n, kind, data });
const tokens = (start, text, version = 3) => ({
  call: "c", parent: 0, start, ids: [...text].map((c) => c.charCodeAt(0)), texts: [...text], logprobs: [...text].map(() => -0.5), version,
});

test("tokens of an open call grow its stream in order", () => {
  const state = emptyState();
  applyEvent(state, entry(1, "tokens", tokens(0, "ab")));
  applyEvent(state, entry(2, "tokens", tokens(2, "cd", 4)));
  const stream = state.streams.get("c");
  assert.equal(stream.texts.join(""), "abcd");
  assert.deepEqual(stream.versions, [3, 3, 4, 4]);
});

test("a smaller start replaces everything from there", () => {
  const state = emptyState();
  applyEvent(state, entry(1, "tokens", tokens(0, "abcd")));
  applyEvent(state, entry(2, "tokens", tokens(1, "X")));
  assert.equal(state.streams.get("c").texts.join(""), "aX");
  assert.equal(state.streams.get("c").redraws, 1);
});

test("tokens whose beginning is not in the log are left to the node", () => {
  const state = emptyState();
  applyEvent(state, entry(1, "tokens", tokens(5, "late")));
  assert.deepEqual(state.streams.get("c").texts, []);
});

test("the node takes the place of its call's provisional tokens, and late tokens do not bring them back", () => {
  const state = emptyState();
  applyEvent(state, entry(1, "call", { call: "c", index: 1, state: "open" }));
  applyEvent(state, entry(2, "tokens", tokens(0, "ab")));
  applyEvent(state, entry(3, "node", { index: 1, parent: 0, role: "assistant", sampled: true, num_tokens: 3, call: "c", message: { role: "assistant", content: "ab" } }));
  applyEvent(state, entry(4, "call", { call: "c", index: 1, state: "completed" }));
  applyEvent(state, entry(5, "tokens", tokens(0, "ab")));
  assert.equal(state.streams.size, 0);
  assert.equal(state.messages.get(1).content, "ab");
});

test("an unknown kind changes only the position", () => {
  const state = emptyState();
  applyEvent(state, entry(9, "invented", { anything: 1 }));
  assert.deepEqual(state.position, [1, 9]);
  assert.equal(state.nodes.size, 0);
});
