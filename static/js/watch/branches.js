// @ts-check
/**
 * Branches of the tree: root-to-leaf paths, with their names, forks and sizes. Pure.
 *
 * A leaf is a node without children, or an answer being sampled (`live:<call>`) below any node.
 */

/** @typedef {import("./rollout_data.js").State} State */
/**
 * @typedef {object} Branch
 * @property {string} leaf       "417" or "live:<call>"
 * @property {number|null} node  last committed node
 * @property {string|null} call  the call that samples at its end
 * @property {string} role
 * @property {string} name
 * @property {number} forkAt     deepest node shared with an earlier branch; -1: own root
 * @property {number} depth      how many forks deep it hangs
 * @property {number} turns
 * @property {number} tokens
 */

/** @param {State} state @returns {Map<number|null, number[]>} */
export function childrenOf(state) {
  /** @type {Map<number|null, number[]>} */
  const children = new Map();
  for (const node of state.nodes.values()) {
    const list = children.get(node.parent);
    if (list) list.push(node.index);
    else children.set(node.parent, [node.index]);
  }
  return children;
}

/** @param {State} state @param {number|null} node @returns {number[]} indexes from the root */
export function pathTo(state, node) {
  const path = [];
  for (let at = node; at !== null && at !== undefined && path.length <= state.nodes.size; ) {
    const found = state.nodes.get(at);
    if (!found) break;
    path.push(at);
    at = found.parent;
  }
  return path.reverse();
}

/** @param {State} state @returns {Branch[]} in order of their first own node */
export function branchesOf(state) {
  const children = childrenOf(state);
  /** @type {{leaf: string, node: number|null, call: string|null}[]} */
  const leaves = [];
  const streaming = new Set();
  for (const stream of state.streams.values()) {
    leaves.push({ leaf: `live:${stream.call}`, node: stream.parent, call: stream.call });
    streaming.add(stream.parent);
  }
  for (const node of state.nodes.values()) {
    if (!children.has(node.index) && !streaming.has(node.index)) {
      leaves.push({ leaf: String(node.index), node: node.index, call: null });
    }
  }
  const paths = leaves.map((leaf) => ({ ...leaf, path: pathTo(state, leaf.node) }));
  paths.sort((a, b) => comparePaths(a.path, b.path));
  return nameBranches(state, paths);
}

/**
 * Older first; a path before its own continuation elsewhere.
 * @param {number[]} a
 * @param {number[]} b
 */
function comparePaths(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i];
  return b.length - a.length;
}

/**
 * @param {State} state
 * @param {{leaf: string, node: number|null, call: string|null, path: number[]}[]} paths
 * @returns {Branch[]}
 */
function nameBranches(state, paths) {
  /** @type {Map<number, number>} node -> position of the first branch that has it */
  const owner = new Map();
  /** @type {Branch[]} */
  const branches = [];
  /** @type {Map<string, number>} */
  const used = new Map();
  for (const { leaf, node, call, path } of paths) {
    const own = path.findIndex((index) => !owner.has(index));
    const forkAt = own === 0 || path.length === 0 ? -1 : path[(own < 0 ? path.length : own) - 1];
    const above = forkAt < 0 ? null : branches[owner.get(forkAt) ?? 0];
    for (const index of path) if (!owner.has(index)) owner.set(index, branches.length);
    const last = path.length ? state.nodes.get(path[path.length - 1]) : undefined;
    const role = last?.branch_role ?? "main";
    branches.push({
      leaf, node, call, role, name: nameOf(role, used), forkAt, depth: above ? above.depth + 1 : 0,
      turns: path.filter((index) => state.nodes.get(index)?.sampled).length,
      tokens: (last ? last.depth_tokens + last.num_tokens : 0) + (call ? (state.streams.get(call)?.ids.length ?? 0) : 0),
    });
  }
  return branches;
}

/**
 * @param {string} role
 * @param {Map<string, number>} used
 */
function nameOf(role, used) {
  const number = (used.get(role) ?? 0) + 1;
  used.set(role, number);
  if (number === 1) return role.replace("-", " ");
  return `${role.replace("-", " ")} ${number}`;
}

/**
 * The branch to show: the one asked for, one that holds `at`, the main one that samples now, or that grew last.
 * @param {Branch[]} branches
 * @param {State} state
 * @param {{leaf?: string|null, at?: number|null}} wish
 * @returns {Branch|null}
 */
export function chooseBranch(branches, state, wish) {
  const exact = branches.find((branch) => branch.leaf === wish.leaf);
  if (exact) return exact;
  const node = wish.leaf ? Number(wish.leaf) : (wish.at ?? null);
  if (node !== null && Number.isInteger(node)) {
    const holding = branches.filter((branch) => pathTo(state, branch.node).includes(node));
    if (holding.length) return best(holding);
  }
  return best(branches);
}

/** What samples before what is done, the main line before others, then what grew last. @param {Branch[]} branches */
function best(branches) {
  const main = branches.filter((branch) => branch.role === "main");
  const sampling = main.find((branch) => branch.call) ?? branches.find((branch) => branch.call);
  if (sampling) return sampling;
  const list = main.length ? main : branches;
  return list.reduce((last, branch) => (!last || (branch.node ?? -1) >= (last.node ?? -1) ? branch : last), /** @type {Branch|null} */ (null));
}
