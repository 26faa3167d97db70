import assert from "node:assert/strict";
import test from "node:test";
import { applyToCell, LINGER_MS, makeCell, mergeWall, moodOf, speedOf } from "../../../../static/js/watch/wall_data.js";

const about = (id, extra = {}) => ({ id, state: "running", sampled_tokens: 100, tail: [], last_activity_at: null, ...extra });
const tokens = (start, text, call = "c") => ({ epoch: 1, n: start + 1, kind: "tokens", data: { call, start, texts: [...text], version: 4 } });

test("a cell shows the end of what is sampled and counts it once, also when it is sampled again", () => {
  const cell = makeCell(about("a", { tail: [[1, 1, "tokens", { call: "c", start: 0, texts: ["h", "i"], version: 4 }]] }), 0);
  assert.equal(cell.tokens, 102);
  applyToCell(cell, tokens(2, " you"), 1000);
  applyToCell(cell, tokens(3, "YOU"), 1000);
  assert.equal(cell.tokens, 106);
  assert.ok(cell.tail.startsWith("hi you"));
});

test("what the harness prints while an answer comes does not tear the answer apart", () => {
  const cell = makeCell(about("a"), 0);
  const print = (text) => applyToCell(cell, { kind: "output", data: { text } }, 0);
  applyToCell(cell, tokens(0, "Let me"), 0);
  print("the prompt\n");
  applyToCell(cell, tokens(6, " see"), 0);
  assert.equal(cell.tail, "the prompt\nLet me see");
  applyToCell(cell, { kind: "call", data: { call: "c", state: "completed" } }, 0);
  print("!\n");
  assert.equal(cell.tail, "the prompt\nLet me see!\n");
});

test("speed is that of the last seconds", () => {
  const cell = makeCell(about("a"), 0);
  applyToCell(cell, tokens(0, "x".repeat(40)), 1000);
  assert.equal(speedOf(cell, 2000), 10);
  assert.equal(speedOf(cell, 9000), 0);
});

test("a silent cell is quiet, then stuck; a held or queued one is neither", () => {
  const cell = makeCell(about("a"), 0);
  assert.deepEqual([1000, 10_000, 70_000].map((now) => moodOf(cell, now)), ["live", "quiet", "stuck"]);
  applyToCell(cell, { kind: "call", data: { call: "c", state: "open", hold_reason: "weights change" } }, 70_000);
  assert.equal(moodOf(cell, 200_000), "held");
  assert.equal(moodOf(makeCell(about("q", { state: "queued" }), 0), 200_000), "quiet");
});

test("cells keep their place, new ones come last, ended ones linger and leave", () => {
  const cells = new Map();
  mergeWall(cells, [about("a"), about("b")], 0);
  applyToCell(cells.get("a"), { kind: "state", data: { state: "ended", outcome: "completed" } }, 1000);
  const { added, removed } = mergeWall(cells, [about("b"), about("c")], 2000);
  assert.deepEqual([[...cells.keys()], added.map((cell) => cell.id), removed], [["a", "b", "c"], ["c"], []]);
  assert.equal(moodOf(cells.get("a"), 2000), "ended");
  assert.deepEqual(mergeWall(cells, [about("b"), about("c")], 1001 + LINGER_MS).removed, ["a"]);
});
