import assert from "node:assert/strict";
import test from "node:test";
import { readAddress, writeAddress } from "../../../../static/js/watch/address.js";
import { ansiPieces, hasAnsi } from "../../../../static/js/watch/ansi.js";
import { branchesOf, chooseBranch, pathTo } from "../../../../static/js/watch/branches.js";
import { duration, versionRange } from "../../../../static/js/watch/format.js";
import { binOf, legendOf, lensOf, rangeOf } from "../../../../static/js/watch/lens.js";
import { livenessOf } from "../../../../static/js/watch/header_view.js";
import { diffParts, spansOf } from "../../../../static/js/watch/panels.js";
import { emptyState } from "../../../../static/js/watch/rollout_data.js";

const text = (pieces) => pieces.map((piece) => piece.text).join("");

test("the address holds tab, lens, node, token and branch, and survives nonsense", () => {
  const search = "?tab=tokens&lens=advantage&at=n417.1203&branch=902";
  assert.equal(writeAddress(readAddress(search)), search);
  assert.equal(readAddress("?at=n417.1203").tab, "tokens");
  assert.deepEqual(readAddress("?at=n4x&tab=<script>"), { tab: "conversation", lens: "logprob", node: null, token: null, branch: null });
});

test("colours become classes, escapes never reach the page", () => {
  const pieces = ansiPieces("a\x1b[1;31mred\x1b[0m\x1b]0;title\x07 b\x1b[2K\x1b[38;5;10mx");
  assert.equal(text(pieces), "ared bx");
  assert.equal(pieces[1].classes, "fg-1 a-bold");
  assert.equal(pieces.at(-1).classes, "fg-10");
});

test("a progress bar shows its last state only", () => {
  assert.equal(text(ansiPieces("10%\r50%\r100%\ndone\r\n")), "100%\ndone\n");
  assert.ok(hasAnsi("1%\r2%"));
  assert.ok(!hasAnsi("dos line\r\n"));
});

test("an unfinished escape at the end and a flood of escapes cost little", () => {
  assert.equal(text(ansiPieces("x\x1b[31")), "x[31");
  const started = performance.now();
  ansiPieces("\x1b[31m\x1b[0m".repeat(100_000));
  assert.ok(performance.now() - started < 2000);
});

test("bins are even, and nothing recorded has no colour", () => {
  const lens = lensOf("logprob");
  assert.deepEqual([0, -3, -6, -50].map((value) => binOf(lens, [0, -6], value)), [0, 4, 8, 8]);
  assert.equal(binOf(lens, [0, -6], null), null);
});

test("the version lens spans the rollout's own versions, one legend entry each", () => {
  const lens = lensOf("version");
  const range = rangeOf(lens, [3, 5, 4, 3]);
  assert.deepEqual(range, [3, 5]);
  assert.deepEqual(legendOf(lens, range).map(({ label }) => label), ["v3", "v4", "v5"]);
});

test("advantage is shown where the mask is 1 only", () => {
  const lens = lensOf("advantage");
  assert.equal(lens.value({ mask: 0, advantage: 1.5 }), null);
  assert.equal(lens.value({ mask: 1, advantage: 1.5 }), 1.5);
});

function tree(parents, roles = {}) {
  const state = emptyState();
  parents.forEach((parent, index) => state.nodes.set(index, {
    index, parent, role: "user", branch_role: roles[index] ?? "main", sampled: index % 2 === 1, num_tokens: 10, depth_tokens: 10 * index,
  }));
  return state;
}

test("leaves are branches, named by role, with the node where they fork", () => {
  //  0 - 1 - 2 - 3      main
  //       \- 4          main-summary
  //  5                  sub-agent
  const state = tree([null, 0, 1, 2, 1, null], { 4: "main-summary", 5: "sub-agent" });
  const branches = branchesOf(state);
  assert.deepEqual(branches.map((b) => [b.name, b.leaf, b.forkAt, b.depth]), [["main", "3", -1, 0], ["main summary", "4", 1, 1], ["sub agent", "5", -1, 0]]);
  assert.deepEqual(pathTo(state, 3), [0, 1, 2, 3]);
});

test("an answer being sampled extends the branch it hangs on, or is one of its own", () => {
  const state = tree([null, 0, 1]);
  state.streams.set("c", { call: "c", parent: 2, ids: [1, 2] });
  assert.deepEqual(branchesOf(state).map((b) => [b.leaf, b.tokens]), [["live:c", 32]]);
  state.streams.set("d", { call: "d", parent: 0, ids: [] });
  assert.deepEqual(branchesOf(state).map((b) => b.leaf).sort(), ["live:c", "live:d"]);
});

test("the shown branch: the one asked for, the one that holds the node, the one that samples", () => {
  const state = tree([null, 0, 1, 2, 1], { 4: "sub-agent" });
  const branches = branchesOf(state);
  assert.equal(chooseBranch(branches, state, { leaf: "4" }).leaf, "4");
  assert.equal(chooseBranch(branches, state, { at: 3 }).leaf, "3");
  assert.equal(chooseBranch(branches, state, {}).leaf, "3");
  state.streams.set("c", { call: "c", parent: 3, ids: [] });
  assert.equal(chooseBranch(branchesOf(state), state, { leaf: "3" }).leaf, "live:c");
});

test("the page says how live it is", () => {
  const status = { state: "reconnecting", retryAt: Date.now() + 2500, reason: "" };
  assert.deepEqual(livenessOf(status, { lag: 0, isOver: false }), ["reconnecting", "reconnecting in 3 s"]);
  assert.deepEqual(livenessOf({ state: "live" }, { lag: 1200, isOver: false }), ["catching-up", "catching up, 1,200 behind"]);
  assert.deepEqual(livenessOf({ state: "live" }, { lag: 0, isOver: true }), ["ended", "ended"]);
});

test("the timeline splits a rollout into queue, model, held, tools and verifier", () => {
  const spans = spansOf({
    rollout: { created_at: 0, started_at: 1000, harness_ended_at: 9000, ended_at: 10_000 },
    calls: [{ index: 0, started_at: 2000, held_s: 1, duration_s: 3 }, { index: 1, started_at: 7000, held_s: 0, duration_s: 1 }],
  });
  assert.deepEqual(spans.map((s) => [s.lane, s.from, s.to]), [
    ["queue", 0, 1000], ["tools", 1000, 2000], ["held", 2000, 3000], ["model", 3000, 5000], ["tools", 5000, 7000],
    ["model", 7000, 8000], ["tools", 8000, 9000], ["verify", 9000, 10_000],
  ]);
});

test("numbers read as people write them", () => {
  assert.deepEqual([0.042, 3.25, 75, 7620].map(duration), ["42 ms", "3.3 s", "1 min 15 s", "2 h 07 min"]);
  assert.equal(versionRange([3, 7, 5]), "v3–v7");
  assert.equal(versionRange([-1]), "expert");
});

test("between two calls the page stays on the branch that grew last, though an older one is longer", () => {
  const state = tree([null, 0, 1, 2, null, 4]);
  assert.equal(chooseBranch(branchesOf(state), state, {}).leaf, "5");
});

test("a diff is cut into files, with git's headers or without", () => {
  const git = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\ndiff --git a/y b/y\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n--- sql comment\n+c\n";
  assert.deepEqual(diffParts(git).map((part) => part.split("\n")[0]), ["diff --git a/x b/x", "diff --git a/y b/y"]);
  const plain = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n";
  assert.equal(diffParts(plain).length, 2);
});
