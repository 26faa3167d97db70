// @ts-check
/**
 * The right column: everything about the token or the node under the hand, number by number.
 *
 * From:  rollout_page.js. Holds: what was not recorded says so, it is never 0.
 */

import { h } from "./dom.js";
import { count, decimal, duration, versionName } from "./format.js";
import { flagName } from "./conversation_view.js";

/** @typedef {import("./lens.js").TokenFacts} TokenFacts */
/** @typedef {import("./rollout_data.js").TreeNode} TreeNode */

/** @param {string} why */
function missing(why) {
  return h("span", { class: "not-recorded", title: why }, "not recorded");
}

/** @param {[string, any, string?][]} rows  name, value, meaning */
function facts(rows) {
  return h(
    "dl",
    { class: "facts inspector-facts" },
    rows.map(([name, value, meaning]) => [h("dt", { title: meaning ?? null }, name), h("dd", { class: "mono" }, value)]),
  );
}

/**
 * @param {HTMLElement} root
 * @param {TreeNode|null} node
 * @param {number} position
 * @param {TokenFacts} token
 * @param {{special: boolean, maskRecorded: boolean}} about
 */
export function drawToken(root, node, position, token, about) {
  const p = token.logprob === null ? null : Math.exp(token.logprob);
  const mismatch = token.trainer === null || token.logprob === null ? null : token.trainer - token.logprob;
  const noContext = "Tokens of the context were not sampled, so they have none.";
  root.replaceChildren(
    h("h2", { class: "side-title" }, node ? `Token ${count(position)} of n${node.index}` : `Token ${count(position)}, provisional`),
    h("p", { class: "token-text mono" }, token.text === "" ? "part of a character" : JSON.stringify(token.text)),
    facts([
      ["id", `${token.id}${about.special ? " · special" : ""}`],
      ["log p", token.logprob === null ? missing(noContext) : decimal(token.logprob), "Engine's log-probability when it was sampled"],
      ["p", p === null ? missing(noContext) : decimal(p)],
      ["version", token.version === null ? "context" : versionName(token.version), "Weights that sampled it"],
      ["mask", `${token.mask}${about.maskRecorded ? "" : " (expected)"}`, "1: in the loss"],
      ["advantage", token.advantage === null ? missing("Not trained yet, or no member of a group.") : decimal(token.mask ? token.advantage : 0)],
      ["trainer log p", token.trainer === null ? missing("Written when its group is trained.") : decimal(token.trainer)],
      ["mismatch", mismatch === null ? missing("Needs the trainer's log-probability.") : decimal(mismatch, 4), "Trainer minus engine"],
      ["in context", node ? count(node.depth_tokens + position) : "–", "Tokens before it on its branch"],
    ]),
  );
}

/**
 * @param {HTMLElement} root
 * @param {TreeNode} node
 * @param {any} call
 * @param {{onRequest: (index: number) => void, onFork: ((index: number, count: number) => void)|null}} actions  onFork: null without the right to
 */
export function drawNode(root, node, call, actions) {
  const spans = node.version_spans.map(([start, end, version]) => `${versionName(version)} ${count(start)}–${count(end - 1)}`);
  /** @type {[string, any, string?][]} */
  const rows = [
    ["role", `${node.role} · ${node.branch_role}`],
    ["tokens", `${count(node.num_tokens)}${node.opener_length ? ` (${node.opener_length} opener)` : ""}`, "The opener is the template's generation prompt: context"],
    ["before it", count(node.depth_tokens)],
    ["parent", node.parent === null ? "none, a root" : `n${node.parent}`],
    ["sampled", node.sampled ? (node.trainable ? "yes, trainable" : "yes, not trainable") : "no, context"],
  ];
  if (spans.length) rows.push(["versions", spans.join(", ")]);
  if (node.flags?.length) rows.push(["flags", node.flags.map(flagName).join(", ")]);
  root.replaceChildren(h("h2", { class: "side-title" }, `Node n${node.index}`), facts(rows));
  if (call) {
    root.append(
      h("h2", { class: "side-title" }, `Call ${count(call.index)}`),
      facts([
        ["state", call.state],
        ["dialect", `${call.dialect ?? "–"}${call.streamed ? ", streamed" : ""}`, "The wire format that the harness spoke"],
        ...(call.retry_of ? [/** @type {[string, any]} */ (["retry of", call.retry_of.slice(0, 8)])] : []),
        ...(call.drift?.length ? [/** @type {[string, any, string]} */ (["differences", differences(call.drift), "Where its history was not as it was sampled or seen"])] : []),
        ["prompt", `${count(call.num_prompt_tokens)} tok`],
        ["first token", duration(call.first_token_s)],
        ["duration", duration(call.duration_s)],
        ["held", duration(call.held_s), "Waited for an engine or a weight change"],
        ["ended by", call.finish_reason || "–"],
        ["engines", (call.engines ?? []).join(", ") || "–"],
        ...(call.error ? [/** @type {[string, any]} */ (["error", call.error])] : []),
      ]),
      h("button", { type: "button", class: "link-button", onclick: () => actions.onRequest(call.index) }, "Show the rebuilt request"),
      ...(actions.onFork ? [forkForm(call.index, actions.onFork)] : []),
    );
  }
}

/** @param {[string, number, number|null][]} drift */
function differences(drift) {
  return drift.map(([kind, message, node]) => `${kind} at ${node === null ? `message ${message}` : `n${node}`}`).join(", ");
}

/** @param {number} index @param {(index: number, count: number) => void} onFork */
function forkForm(index, onFork) {
  const number = h("input", { type: "number", min: "1", max: "32", value: "4", required: true, class: "input", "aria-label": "How many forks" });
  return h(
    "form",
    {
      class: "fork-form",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        onFork(index, Number(/** @type {HTMLInputElement} */ (number).value));
      },
    },
    h("label", { title: "New rollouts that are answered from this record up to here, and then go their own way" }, "Fork here, ", number, " times "),
    h("button", { type: "submit", class: "button button-small" }, "Fork"),
  );
}

/** @param {HTMLElement} root */
export function drawNothing(root) {
  root.replaceChildren(
    h("h2", { class: "side-title" }, "Inspector"),
    h("p", { class: "faint small" }, "Point at a token, or move with the arrow keys; j and k move by turn."),
  );
}
