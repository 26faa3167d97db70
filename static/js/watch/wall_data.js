// @ts-check
/**
 * The wall as state: one cell a live rollout. Pure; the clock is given.
 *
 * Holds: a cell keeps its place while it lives; an ended one stays LINGER_MS, so that people see how it ended.
 */

/** @typedef {import("./live_client.js").Entry} Entry */
/**
 * @typedef {object} Cell
 * @property {string} id
 * @property {any} about        as the server described it
 * @property {string} state
 * @property {string} outcome
 * @property {string} tail      end of what is sampled, or of what the harness printed
 * @property {number} tokens    sampled in all
 * @property {{at: number, tokens: number}[]} recent   for tokens/s
 * @property {string} call
 * @property {number} callTokens
 * @property {number} callChars  end of `tail` that the open call sampled; what the harness prints meanwhile goes before it
 * @property {string[]} engines
 * @property {string} role
 * @property {number|null} version
 * @property {string} hold
 * @property {number} activeAt  ms
 * @property {number|null} endedAt
 */

export const TAIL_CHARS = 700;
export const QUIET_MS = 8_000;
export const STUCK_MS = 60_000;
export const LINGER_MS = 12_000;
const SPEED_MS = 4_000;

/** @param {any} about @param {number} now @returns {Cell} */
export function makeCell(about, now) {
  /** @type {Cell} */
  const cell = {
    id: about.id, about, state: about.state, outcome: "", tail: "", tokens: about.sampled_tokens, recent: [], call: "",
    callTokens: 0, callChars: 0, engines: [], role: "main", version: null, hold: "", endedAt: null,
    activeAt: about.last_activity_at ? Date.parse(about.last_activity_at) : now,
  };
  for (const [epoch, n, kind, data] of about.tail) applyToCell(cell, { epoch, n, kind, data }, cell.activeAt);
  cell.tokens = about.sampled_tokens + cell.callTokens;
  cell.recent = [];
  return cell;
}

/**
 * @param {Cell} cell
 * @param {Entry} entry
 * @param {number} now
 */
export function applyToCell(cell, { kind, data }, now) {
  cell.activeAt = Math.max(cell.activeAt, now);
  if (kind === "tokens") sample(cell, data, now);
  else if (kind === "output") print(cell, data.text);
  else if (kind === "state") {
    cell.state = data.state;
    cell.outcome = data.outcome ?? "";
    if (data.state === "ended") cell.endedAt = now;
  } else if (kind === "call") {
    cell.hold = data.state === "open" ? (data.hold_reason ?? "") : "";
    if (data.engines?.length) cell.engines = data.engines;
    if (data.state === "open" && data.call !== cell.call) startCall(cell, data.call);
    if (data.state !== "open" && data.call === cell.call) cell.callChars = 0;
  } else if (kind === "node" && data.branch_role) cell.role = data.branch_role;
}

/** @param {Cell} cell @param {string} call */
function startCall(cell, call) {
  cell.call = call;
  cell.callTokens = 0;
  cell.callChars = 0;
  if (cell.tail && !cell.tail.endsWith("\n")) cell.tail += "\n";
}

/** A harness may print its prompt when the answer to it already comes. @param {Cell} cell @param {string} text */
function print(cell, text) {
  const at = Math.max(0, cell.tail.length - cell.callChars);
  cell.tail = (cell.tail.slice(0, at) + text + cell.tail.slice(at)).slice(-TAIL_CHARS);
}

/** @param {Cell} cell @param {any} data @param {number} now */
function sample(cell, data, now) {
  if (data.call !== cell.call) startCall(cell, data.call);
  const end = data.start + data.texts.length;
  const fresh = Math.max(0, end - cell.callTokens);
  cell.callTokens = end;
  cell.tokens += fresh;
  cell.version = data.version ?? cell.version;
  const text = data.texts.join("");
  cell.callChars += text.length;
  cell.tail = (cell.tail + text).slice(-TAIL_CHARS);
  cell.recent.push({ at: now, tokens: fresh });
  if (cell.recent.length > 200) cell.recent.splice(0, 100);
}

/** Over the last four seconds. @param {Cell} cell @param {number} now */
export function speedOf(cell, now) {
  const tokens = cell.recent.reduce((sum, one) => (one.at > now - SPEED_MS ? sum + one.tokens : sum), 0);
  return tokens / (SPEED_MS / 1000);
}

/**
 * live: samples or just did; quiet: a tool or a verifier runs; stuck: nothing at all for a minute; held: waits for weights.
 * @param {Cell} cell
 * @param {number} now
 * @returns {"live"|"quiet"|"stuck"|"held"|"ended"}
 */
export function moodOf(cell, now) {
  if (cell.endedAt !== null) return "ended";
  if (cell.hold) return "held";
  const silent = now - cell.activeAt;
  if (silent > STUCK_MS && cell.state !== "queued") return "stuck";
  return silent > QUIET_MS ? "quiet" : "live";
}

/**
 * Brings the cells to what the server lists now: new ones come last, gone ones leave when they have lingered.
 * @param {Map<string, Cell>} cells
 * @param {any[]} listed
 * @param {number} now
 * @returns {{added: Cell[], removed: string[]}}
 */
export function mergeWall(cells, listed, now) {
  const alive = new Set(listed.map((about) => about.id));
  const added = [];
  for (const about of listed) {
    const known = cells.get(about.id);
    if (known) known.state = known.endedAt === null ? about.state : known.state;
    else {
      const cell = makeCell(about, now);
      cells.set(cell.id, cell);
      added.push(cell);
    }
  }
  const removed = [];
  for (const cell of cells.values()) {
    if (alive.has(cell.id)) continue;
    cell.endedAt ??= now;
    if (now - cell.endedAt > LINGER_MS) {
      cells.delete(cell.id);
      removed.push(cell.id);
    }
  }
  return { added, removed };
}
