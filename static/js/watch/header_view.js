// @ts-check
/** The rollout's head line: state, outcome, reward, tokens, versions, flags, and how live the page is. */

import { flagName } from "./conversation_view.js";
import { h } from "./dom.js";
import { count, decimal, versionRange } from "./format.js";

/** @typedef {import("./rollout_data.js").State} State */

/** @type {Record<string, [string, string]>} outcome or state -> glyph, tone */
const SIGNS = {
  completed: ["✓", "good"], queued: ["◌", "muted"], starting: ["◔", "accent"], running: ["◉", "accent"], verifying: ["◑", "accent"],
  harness_timeout: ["◷", "warn"], budget_reached: ["◷", "warn"], context_overflow: ["◷", "warn"], idle: ["◷", "warn"],
  cancelled: ["⊘", "muted"],
};

/** @param {HTMLElement} root @param {State} state */
export function drawHeader(root, state) {
  const { rollout } = state;
  const [glyph, tone] = SIGNS[rollout.outcome || rollout.state] ?? ["✕", "bad"];
  const word = (rollout.outcome || rollout.state || "").replaceAll("_", " ");
  const member = rollout.member;
  const parts = [
    h("span", { class: `tone tone-text-${tone}` }, h("span", { "aria-hidden": "true" }, `${glyph} `), word),
    rewardOf(rollout, member),
    h("span", { title: "Sampled by the model, of all distinct tokens" }, tokensOf(state)),
  ];
  const versions = versionRange([...state.nodes.values()].flatMap((node) => node.version_spans.map((span) => span[2])));
  if (versions) parts.push(h("span", { class: "mono", title: "Weight versions that sampled it" }, versions));
  if (member) parts.push(dispositionOf(member));
  for (const flag of rollout.flags ?? []) {
    parts.push(h("span", { class: "badge badge-warn", title: typeof flag === "object" ? String(flag.evidence ?? "") : "" }, "⚑ ", flagName(flag)));
  }
  root.replaceChildren(...parts);
  if (rollout.error) root.append(h("p", { class: "header-error" }, rollout.error));
}

/** @param {any} rollout @param {any} member */
function rewardOf(rollout, member) {
  const override = member?.effective_reward;
  if (override !== null && override !== undefined) {
    const was = rollout.reward === null ? "not scored" : decimal(rollout.reward, 2);
    return h("span", null, "reward ", h("strong", null, decimal(override, 2)), h("span", { class: "faint" }, ` (a person; verifier ${was})`));
  }
  if (rollout.outcome === "image_unavailable") {
    return h("span", { class: "faint", title: "Nothing was evaluated. Whether the placeholder counts is a setting of the run: objective.image_unavailable." }, "placeholder 0, not a reward");
  }
  if (rollout.reward === null || rollout.reward === undefined) {
    return h("span", { class: "faint", title: "Never scored is not 0." }, rollout.state === "ended" ? "not scored" : "no reward yet");
  }
  return h("span", null, "reward ", h("strong", null, decimal(rollout.reward, 2)), h("span", { class: "faint" }, " (verifier)"));
}

/** @param {State} state */
function tokensOf(state) {
  let sampled = 0;
  let all = 0;
  for (const node of state.nodes.values()) {
    all += node.num_tokens;
    if (node.sampled) sampled += node.num_tokens - node.opener_length;
  }
  for (const stream of state.streams.values()) {
    sampled += stream.ids.length;
    all += stream.ids.length;
  }
  return `${count(sampled)} sampled of ${count(all)} tokens`;
}

/** @param {any} member */
function dispositionOf(member) {
  const words = member.disposition === "trained" && member.advantage !== null ? `trained, advantage ${decimal(member.advantage, 2)}` : member.hold ? "held for review" : member.disposition;
  return h("span", { class: "badge", title: member.reason || member.hold_reason || "What training did with it" }, words);
}

/**
 * @param {HTMLElement} root
 * @param {import("./live_client.js").Status} status
 * @param {{lag: number, isOver: boolean}} about
 */
export function drawLiveness(root, status, about) {
  const [state, words] = livenessOf(status, about);
  root.dataset.state = state;
  root.textContent = words;
}

/**
 * @param {import("./live_client.js").Status} status
 * @param {{lag: number, isOver: boolean}} about
 * @returns {[string, string]}
 */
export function livenessOf(status, { lag, isOver }) {
  if (isOver) return ["ended", "ended"];
  if (status.state === "reconnecting") {
    const seconds = Math.max(0, Math.ceil(((status.retryAt ?? 0) - Date.now()) / 1000));
    return ["reconnecting", `reconnecting in ${seconds} s`];
  }
  if (status.state === "ended") return ["reconnecting", status.reason];
  if (status.state === "connecting") return ["catching-up", "connecting"];
  return lag > 0 ? ["catching-up", `catching up, ${count(lag)} behind`] : ["live", "live"];
}
