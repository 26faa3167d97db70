// @ts-check
/**
 * A node as people read it: message, reasoning, tool calls, results. And the line above it.
 *
 * From:  rollout_data.js state. To: node_list.js, as head and body of a section.
 */

import { h } from "./dom.js";
import { count, duration, versionName } from "./format.js";
import { codeBlock, shown, textBlock } from "./text_view.js";

/** @typedef {import("./rollout_data.js").State} State */
/** @typedef {import("./rollout_data.js").TreeNode} TreeNode */

const ROLE_SIGN = { system: "§", user: "▷", assistant: "●", tool: "⌗" };

/**
 * @param {State} state
 * @param {TreeNode} node
 * @param {number|null} toolSeconds   how long the tool ran before this message came, where known
 * @param {boolean} selected
 */
export function nodeHead(state, node, toolSeconds, selected) {
  const call = node.call ? state.calls.get(node.call) : null;
  const seconds = call ? call.duration_s : toolSeconds;
  const sign = ROLE_SIGN[/** @type {keyof typeof ROLE_SIGN} */ (node.role)] ?? "○";
  return h(
    "header",
    { class: "node-head", "data-role": node.role, "aria-current": selected ? "true" : null },
    h("a", { class: "node-id mono", href: `#n${node.index}`, "data-node": node.index, title: "Address of this node" }, `n${node.index}`),
    h("span", { class: "node-role" }, h("span", { class: "role-sign", "aria-hidden": "true" }, sign), node.role),
    node.branch_role !== "main" && h("span", { class: "badge" }, node.branch_role),
    badges(node, call),
    callMarks(state, node, call),
    h("span", { class: "node-gap" }),
    node.sampled && versionMarks(node),
    seconds !== null && seconds !== undefined && h("span", { class: "node-figure", title: call ? "Time of the model call" : "Time the tool took" }, duration(seconds)),
    h("span", { class: "node-figure", title: `${count(node.depth_tokens)} tokens before it` }, `${count(node.num_tokens)} tok`),
  );
}

/** @param {TreeNode} node @param {any} call */
function badges(node, call) {
  const marks = [];
  if (call?.state === "aborted") marks.push(h("span", { class: "badge badge-warn", title: "The harness hung up before the answer was complete. Kept, never trained." }, "aborted"));
  if (call?.finish_reason === "length") marks.push(h("span", { class: "badge badge-warn", title: "Cut by the limit of tokens a turn may sample." }, "cut by length"));
  if (node.sampled && !node.trainable && call?.state !== "aborted") {
    marks.push(h("span", { class: "badge", title: "Sampled, but never trained." }, "not trainable"));
  }
  for (const flag of node.flags ?? []) marks.push(h("span", { class: "badge", title: JSON.stringify(flag) }, flagName(flag)));
  return marks;
}

/** What a difference in a harness's history means; the words of docs/explanation/tree.md. @type {Record<string, string>} */
export const DIFFERENCES = {
  arguments: "The harness sent other arguments, or another tool name, back. The sampled text stands.",
  shape: "The harness sent it back in another shape: blanks, parts, or without its reasoning.",
  volatile: "It holds spans that change without meaning. The first seen value is kept.",
  edit: "The harness changed or dropped what came after it: here another branch begins.",
  template: "The chat template itself rewrote it: here another branch begins.",
  reused: "The harness repeated this turn under another beginning. There it is context.",
  "tool-result": "A replay got another text here. The recorded one is kept.",
};

/** Retried, replayed, continued on another engine; and differences, at the node where they lie. @param {State} state @param {TreeNode} node @param {any} call */
function callMarks(state, node, call) {
  const marks = [];
  if (call?.retry_of) marks.push(h("span", { class: "badge", title: "The harness asked again after a call that was cut or failed." }, "retry"));
  if ((call?.engines?.length ?? 0) > 1) {
    marks.push(h("span", { class: "badge", title: "An engine left in mid-answer; another went on with it." }, `continued on ${count(call.engines.length - 1)} more`));
  }
  let replays = 0;
  /** @type {Map<string, number[]>} */
  const kinds = new Map();
  for (const other of state.calls.values()) {
    if (call && other.replay_of === call.call) replays += 1;
    for (const [kind, , index] of other.drift ?? []) {
      if (index === node.index) kinds.set(kind, [...(kinds.get(kind) ?? []), other.index]);
    }
  }
  if (replays) marks.push(h("span", { class: "badge", title: "A later session was answered with it from the record." }, `replayed ${count(replays)}×`));
  for (const [kind, calls] of kinds) {
    marks.push(h("span", { class: "badge badge-diff", title: `${DIFFERENCES[kind] ?? "A difference."} Seen by call ${calls.map(count).join(", ")}.` }, kind));
  }
  return marks;
}

/** @param {any} flag */
export function flagName(flag) {
  return String(typeof flag === "object" && flag ? (flag.kind ?? JSON.stringify(flag)) : flag).replaceAll("_", " ");
}

/** v5 ┊ v6: the versions in order, a bar where the weights changed. @param {TreeNode} node */
function versionMarks(node) {
  const versions = node.version_spans.map((span) => span[2]).filter((version, i, all) => i === 0 || version !== all[i - 1]);
  if (!versions.length) return null;
  const text = versions.map(versionName).join(" ┊ ");
  return h("span", { class: "node-figure version-marks", title: "Weight versions that sampled it, in order" }, text);
}

/**
 * @param {any} message
 * @param {(key: string) => Promise<string>} loadWhole
 * @param {boolean} [isOutput]   what a tool printed (some harnesses send it as the user)
 * @returns {HTMLElement[]}
 */
export function messageBody(message, loadWhole, isOutput = message.role === "tool") {
  const parts = [];
  if (message.reasoning) parts.push(reasoning(message, loadWhole));
  if (message.content) parts.push(contentOf(message, loadWhole, isOutput));
  for (const call of message.tool_calls ?? []) parts.push(toolCall(call));
  const known = new Set(["role", "content", "reasoning", "tool_calls", "tool_call_id", "name", "cut"]);
  const unknown = Object.fromEntries(Object.entries(message).filter(([key]) => !known.has(key)));
  if (Object.keys(unknown).length) parts.push(codeBlock(JSON.stringify(unknown, null, 2), "other fields"));
  if (!parts.length) parts.push(h("p", { class: "faint" }, "An empty message."));
  return parts;
}

/** @param {any} message @param {(key: string) => Promise<string>} loadWhole @param {boolean} isOutput */
function contentOf(message, loadWhole, isOutput) {
  const text = typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 2);
  const block = textBlock(text, {
    ansi: isOutput || message.role === "user", fences: !isOutput, cutLength: message.cut?.content ?? 0, whole: () => loadWhole("content"),
  });
  if (isOutput) block.classList.add("tool-output");
  return block;
}

/** @param {any} message @param {(key: string) => Promise<string>} loadWhole */
function reasoning(message, loadWhole) {
  const block = textBlock(message.reasoning, { cutLength: message.cut?.reasoning ?? 0, whole: () => loadWhole("reasoning") });
  return h("details", { class: "reasoning" }, h("summary", null, `reasoning · ${count(message.reasoning.length)} characters`), block);
}

/** Arguments as their parts where they are a JSON object, else the raw text. @param {any} call */
function toolCall(call) {
  let values = null;
  try {
    values = JSON.parse(call.arguments);
  } catch {
    values = null;
  }
  const parts =
    values && typeof values === "object" && !Array.isArray(values)
      ? Object.entries(values).map(([name, value]) => codeBlock(typeof value === "string" ? shown(value) : JSON.stringify(value, null, 2), name))
      : [codeBlock(shown(String(call.arguments ?? "")), "arguments, as written")];
  return h(
    "div",
    { class: "tool-call" },
    h("div", { class: "tool-call-head" }, h("span", { class: "mono" }, call.name), h("span", { class: "faint mono small" }, call.id)),
    parts,
  );
}

/** @param {State} state @param {import("./rollout_data.js").Stream} stream */
export function streamHead(state, stream) {
  const call = state.calls.get(stream.call);
  const last = stream.versions[stream.versions.length - 1];
  return h(
    "header",
    { class: "node-head is-streaming", "data-role": "assistant" },
    h("span", { class: "node-id mono" }, "now"),
    h("span", { class: "node-role" }, h("span", { class: "role-sign", "aria-hidden": "true" }, "●"), "assistant"),
    h("span", { class: "badge badge-accent" }, call?.hold_reason ? "held" : "sampling"),
    call?.hold_reason && h("span", { class: "faint" }, call.hold_reason),
    h("span", { class: "node-gap" }),
    last !== undefined && last !== null && h("span", { class: "node-figure" }, versionName(last)),
    h("span", { class: "node-figure" }, `${count(stream.ids.length)} tok`),
  );
}

/**
 * Adds what is new to a body that is already on the page; returns how many tokens it shows now.
 * @param {HTMLElement} body
 * @param {import("./rollout_data.js").Stream} stream
 */
export function growText(body, stream) {
  let content = /** @type {HTMLElement|null} */ (body.querySelector(".live-text"));
  const shownTokens = Number(content?.dataset.tokens ?? 0);
  if (!content || content.dataset.redraws !== String(stream.redraws) || shownTokens > stream.texts.length) {
    content = h("div", { class: "live-text text-content", "data-redraws": stream.redraws }, document.createTextNode(""));
    body.replaceChildren(content);
  }
  const from = Number(content.dataset.tokens ?? 0);
  const text = /** @type {Text} */ (content.firstChild);
  text.appendData(stream.texts.slice(from).join(""));
  content.dataset.tokens = String(stream.texts.length);
}
