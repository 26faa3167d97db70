// @ts-check
/**
 * What a rollout is, as the page knows it: pure state, no DOM.
 *
 * From:  a snapshot (gyre_web.watch.selectors.build_snapshot) and the entries of the live log after it.
 * To:    the views of the rollout page.
 * Holds: apply(snapshot, entries) equals a snapshot taken after those entries; applying an entry that the snapshot
 *        already contains changes nothing; a view may keep what it drew while `revision` of its part is the same.
 * Never: touches the page, the network or the clock.
 */

/** @typedef {import("./live_client.js").Entry} Entry */
/** @typedef {[number, number]} Position */
/**
 * @typedef {object} TreeNode   a node without its ids; `message` null: not loaded yet
 * @property {number} index
 * @property {number|null} parent
 * @property {string} role
 * @property {string} branch_role
 * @property {boolean} sampled
 * @property {boolean} trainable
 * @property {number} num_tokens
 * @property {number} depth_tokens
 * @property {number} opener_length
 * @property {[number, number, number][]} version_spans
 * @property {any[]} flags
 * @property {string|null} call
 */
/**
 * @typedef {object} Stream   an answer that is being sampled: provisional tokens of an open call
 * @property {string} call
 * @property {number|null} parent
 * @property {number[]} ids
 * @property {string[]} texts
 * @property {(number|null)[]} logprobs
 * @property {(number|null)[]} versions
 * @property {number} redraws    rises when tokens that were shown are replaced
 */
/** @typedef {{epoch: number, n: number, text: string}} Chunk */
/**
 * @typedef {object} State
 * @property {any} rollout
 * @property {Map<number, TreeNode>} nodes
 * @property {Map<number, any>} messages
 * @property {Map<string, any>} calls
 * @property {Map<string, Stream>} streams
 * @property {Chunk[]} output
 * @property {Chunk[]} verifier
 * @property {boolean} tailWhole
 * @property {any[]} labels
 * @property {Position|null} position
 */

/** @returns {State} */
export function emptyState() {
  return {
    rollout: {}, nodes: new Map(), messages: new Map(), calls: new Map(), streams: new Map(),
    output: [], verifier: [], tailWhole: true, labels: [], position: null,
  };
}

/**
 * @param {any} snapshot
 * @returns {State}
 */
export function stateFrom(snapshot) {
  const state = emptyState();
  state.rollout = snapshot.rollout;
  state.labels = snapshot.labels ?? [];
  state.tailWhole = snapshot.tail_whole;
  const { index, ...columns } = snapshot.columns;
  for (let i = 0; i < index.length; i++) {
    /** @type {any} */
    const node = { index: index[i] };
    for (const name of NODE_FIELDS) node[name] = columns[name][i];
    state.nodes.set(node.index, node);
  }
  for (const call of snapshot.calls) state.calls.set(call.call, pick(call, CALL_FIELDS));
  addMessages(state, snapshot.messages);
  for (const [epoch, n, kind, data] of snapshot.tail) applyEvent(state, { epoch, n, kind, data });
  state.position = snapshot.position;
  return state;
}

const NODE_FIELDS = [
  "parent", "role", "branch_role", "sampled", "trainable", "num_tokens", "depth_tokens", "opener_length",
  "version_spans", "flags", "call",
];
const CALL_FIELDS = [
  "call", "index", "state", "prompt_node", "num_prompt_tokens", "finish_reason", "error", "engines", "first_token_s",
  "duration_s", "held_s",
];

/**
 * @param {State} state
 * @param {Record<string, any>} messages
 */
export function addMessages(state, messages) {
  for (const [index, message] of Object.entries(messages)) state.messages.set(Number(index), message);
}

/**
 * Changes `state` by one entry of the live log. Unknown kinds are kept out, never an error.
 * @param {State} state
 * @param {Entry} entry
 */
export function applyEvent(state, entry) {
  const apply = APPLY[entry.kind];
  if (apply) apply(state, entry.data, entry);
  if (!state.position || after(entry, state.position)) state.position = [entry.epoch, entry.n];
}

/** @type {Record<string, (state: State, data: any, entry: Entry) => void>} */
const APPLY = {
  state(state, data) {
    Object.assign(state.rollout, pick(data, ["state", "outcome", "reward", "error"]));
    if (state.rollout.state === "ended") state.streams.clear();
  },
  node(state, data) {
    const { message, ...node } = data;
    state.nodes.set(node.index, /** @type {TreeNode} */ (pick(node, ["index", ...NODE_FIELDS])));
    if (message !== undefined) state.messages.set(node.index, message);
    if (node.call) state.streams.delete(node.call);
  },
  call(state, data) {
    const known = state.calls.get(data.call);
    if (known && known.state !== "open" && data.state === "open") return;
    state.calls.set(data.call, { ...known, ...pick(data, CALL_FIELDS), ...holdOf(data) });
    if (data.state !== "open") state.streams.delete(data.call);
  },
  tokens(state, data) {
    const call = state.calls.get(data.call);
    if ((call && call.state !== "open") || state.rollout.state === "ended") return;
    extendStream(state, data);
  },
  output(state, data, entry) {
    addChunk(state.output, data, entry);
  },
  verifier(state, data, entry) {
    addChunk(state.verifier, data, entry);
  },
};

/** While a call waits for an engine or new weights, why. @param {any} data */
function holdOf(data) {
  return data.state === "open" && data.hold_reason ? { hold_reason: data.hold_reason } : { hold_reason: undefined };
}

/**
 * A smaller `start` than what is there replaces everything from it (the gateway died and sampled again).
 * @param {State} state
 * @param {any} data
 */
function extendStream(state, data) {
  let stream = state.streams.get(data.call);
  if (!stream) {
    stream = { call: data.call, parent: data.parent, ids: [], texts: [], logprobs: [], versions: [], redraws: 0 };
    state.streams.set(data.call, stream);
  }
  const have = stream.ids.length;
  if (data.start > have) return; // its beginning is not in the log any more; the node will bring all of it
  if (data.start < have) {
    for (const list of [stream.ids, stream.texts, stream.logprobs, stream.versions]) list.length = data.start;
    stream.redraws += 1;
  }
  stream.ids.push(...data.ids);
  stream.texts.push(...data.texts);
  stream.logprobs.push(...(data.logprobs ?? data.ids.map(() => null)));
  stream.versions.push(...data.ids.map(() => data.version ?? null));
}

/**
 * @param {Chunk[]} chunks
 * @param {any} data
 * @param {Entry} entry
 */
function addChunk(chunks, data, entry) {
  const last = chunks[chunks.length - 1];
  if (!last || after(entry, [last.epoch, last.n])) chunks.push({ epoch: entry.epoch, n: entry.n, text: data.text });
}

/**
 * @param {Entry} entry
 * @param {Position} position
 */
function after(entry, position) {
  return entry.epoch > position[0] || (entry.epoch === position[0] && entry.n > position[1]);
}

/**
 * @param {any} source
 * @param {string[]} names
 */
function pick(source, names) {
  /** @type {Record<string, any>} */
  const picked = {};
  for (const name of names) picked[name] = source[name] ?? null;
  return picked;
}

/** Comparable form, for the property test: what a fresh snapshot would say. @param {State} state */
export function plain(state) {
  const { rollout, position } = state;
  const streams = [...state.streams.values()].map(({ redraws, ...stream }) => stream);
  const calls = [...state.calls.values()].map(({ hold_reason, ...call }) => call);
  return {
    rollout: pick(rollout, ["id", "state", "outcome", "reward", "error"]),
    nodes: [...state.nodes.values()].sort((a, b) => a.index - b.index),
    messages: Object.fromEntries([...state.messages].sort((a, b) => a[0] - b[0])),
    calls: calls.sort((a, b) => a.index - b.index),
    streams: streams.sort((a, b) => (a.call < b.call ? -1 : 1)),
    output: state.output.map((chunk) => chunk.text).join(""),
    verifier: state.verifier.map((chunk) => chunk.text).join(""),
    position,
  };
}
