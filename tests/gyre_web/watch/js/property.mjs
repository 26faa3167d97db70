// stdin: [{snapshot, entries, fresh}]: apply(snapshot, entries) must equal a fresh snapshot.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { applyEvent, plain, stateFrom } from "../../../../static/js/watch/rollout_data.js";

for (const { name, snapshot, entries, fresh } of JSON.parse(readFileSync(0, "utf8"))) {
  const state = stateFrom(snapshot);
  for (const [epoch, n, kind, data] of entries) applyEvent(state, { epoch, n, kind, data });
  assert.deepEqual(plain(state), plain(stateFrom(fresh)), name);
}
console.log("equal");
