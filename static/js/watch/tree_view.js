// @ts-check
/**
 * The left column: branches as lines that fork, the sizes of the shown branch's nodes, and where one reads.
 *
 * From:  branches.js, rollout_data.js. To: clicks as `onBranch(leaf)` and `onNode(index)`.
 */

import { h, svg } from "./dom.js";
import { count } from "./format.js";

/** @typedef {import("./branches.js").Branch} Branch */
/** @typedef {import("./rollout_data.js").State} State */

const BARS = 56;
const INDENT = 14;
const ROW = 40;

export class TreeView {
  /**
   * @param {HTMLElement} root
   * @param {{onBranch: (leaf: string) => void, onNode: (index: number) => void}} actions
   */
  constructor(root, actions) {
    this.actions = actions;
    this.branches = h("div", { class: "branches", role: "listbox", "aria-label": "Branches" });
    this.spark = h("div", { class: "token-spark" });
    this.turn = h("p", { class: "turn-position small muted" });
    root.append(h("h2", { class: "side-title" }, "Tree"), this.branches, h("h2", { class: "side-title" }, "Tokens by node"), this.spark, this.turn);
    this.drawn = "";
  }

  /** @param {Branch[]} branches @param {Branch|null} chosen */
  draw(branches, chosen) {
    const drawn = branches.map((b) => `${b.leaf} ${b.tokens} ${b.forkAt}`).join() + (chosen?.leaf ?? "");
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    if (!branches.length) {
      this.branches.replaceChildren(h("p", { class: "faint small" }, "No message yet."));
      return;
    }
    const hadFocus = this.branches.contains(document.activeElement);
    this.branches.replaceChildren(lines(branches, chosen), ...branches.map((branch) => this.#row(branch, branch === chosen)));
    if (hadFocus) /** @type {HTMLElement|null} */ (this.branches.querySelector('[aria-selected="true"]'))?.focus();
  }

  /** @param {Branch} branch @param {boolean} isChosen */
  #row(branch, isChosen) {
    const row = h(
      "button",
      { type: "button", class: "branch", role: "option", "aria-selected": String(isChosen), onclick: () => this.actions.onBranch(branch.leaf) },
      h("span", { class: "branch-name" }, branch.name, branch.call && h("span", { class: "branch-live" }, " sampling")),
      h("span", { class: "branch-note" }, `${count(branch.turns)} ${branch.turns === 1 ? "turn" : "turns"} · ${count(branch.tokens)} tok`),
    );
    row.style.paddingLeft = `${Math.min(branch.depth, 5) * INDENT + 24}px`;
    return row;
  }

  /**
   * @param {State} state
   * @param {number[]} path
   * @param {number|null} at   the node that is read
   */
  drawSpark(state, path, at) {
    const nodes = path.map((index) => /** @type {import("./rollout_data.js").TreeNode} */ (state.nodes.get(index)));
    const per = Math.max(1, Math.ceil(nodes.length / BARS));
    const groups = [];
    for (let i = 0; i < nodes.length; i += per) groups.push(nodes.slice(i, i + per));
    const sizes = groups.map((group) => group.reduce((sum, node) => sum + node.num_tokens, 0));
    const most = Math.max(1, ...sizes);
    const picture = svg("svg", { viewBox: `0 0 ${Math.max(groups.length, 24) * 4} 40`, class: "spark-bars", preserveAspectRatio: "none", role: "img", "aria-label": "Tokens by node along the branch" });
    groups.forEach((group, i) => {
      const height = Math.max(1.5, 36 * Math.sqrt(sizes[i] / most));
      const isHere = at !== null && group.some((node) => node.index === at);
      const sampled = group.filter((node) => node.sampled).length * 2 >= group.length;
      const bar = svg("rect", { x: i * 4, y: 40 - height, width: 3, height, class: `bar ${sampled ? "bar-sampled" : "bar-context"}${isHere ? " bar-here" : ""}` });
      const first = group[0].index;
      bar.addEventListener("click", () => this.actions.onNode(first));
      bar.append(title(`n${first}${per > 1 ? `–n${group[group.length - 1].index}` : ""}: ${count(sizes[i])} tokens`));
      picture.append(bar);
    });
    this.spark.replaceChildren(picture);
    const turns = path.filter((index) => state.nodes.get(index)?.sampled);
    const before = at === null ? turns.length : turns.filter((index) => path.indexOf(index) <= path.indexOf(at)).length;
    this.turn.textContent = turns.length ? `turn ${count(before)} of ${count(turns.length)}` : "no turn yet";
  }
}

/** @param {string} text */
function title(text) {
  const element = svg("title", {});
  element.textContent = text;
  return element;
}

/**
 * The forks: each branch leaves the one it shares nodes with.
 * @param {Branch[]} branches
 * @param {Branch|null} chosen
 */
function lines(branches, chosen) {
  const height = branches.length * ROW;
  const picture = svg("svg", { class: "branch-lines", width: 96, height, viewBox: `0 0 96 ${height}`, "aria-hidden": "true" });
  /** @type {number[]} last row of each depth */
  const rowOfDepth = [];
  branches.forEach((branch, row) => {
    const depth = Math.min(branch.depth, 5);
    const x = depth * INDENT + 10;
    const y = row * ROW + ROW / 2;
    const isChosen = branch === chosen;
    if (branch.forkAt >= 0 && depth > 0 && rowOfDepth[depth - 1] !== undefined) {
      const fromX = (depth - 1) * INDENT + 10;
      const fromY = rowOfDepth[depth - 1] * ROW + ROW / 2;
      picture.append(svg("path", { d: `M${fromX} ${fromY + 6} V${y - 8} Q${fromX} ${y} ${x - 5} ${y}`, class: "branch-line" }));
    }
    picture.append(svg("circle", { cx: x, cy: y, r: 4.5, class: `branch-dot${isChosen ? " is-chosen" : ""}${branch.call ? " is-sampling" : ""}` }));
    rowOfDepth[depth] = row;
  });
  return picture;
}
