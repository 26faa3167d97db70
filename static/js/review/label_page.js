// @ts-check
/** Puts the label panel on the rollout page. Viewers only see the labels. */

import { postJson } from "../base.js";
import { h } from "../watch/dom.js";
import { drawLabels, LabelPanel } from "./label_panel.js";

const form = document.querySelector("[data-label-panel]");
const panel = form instanceof HTMLFormElement ? new LabelPanel(form, postJson) : null;
document.querySelector("[data-open-label]")?.addEventListener("click", () => panel?.open());

document.addEventListener("gyre:labels", (event) => {
  const { labels, rollout } = /** @type {CustomEvent} */ (event).detail;
  const root = document.querySelector("[data-labels]");
  if (root instanceof HTMLElement && (form || labels.length)) drawLabels(root, labels);
  const gate = document.querySelector("[data-label-gate]");
  if (gate instanceof HTMLElement) gate.replaceChildren(...gateOf(rollout.member));
});

/** What a label would do now. @param {any} member */
function gateOf(member) {
  if (!member) return [h("p", { class: "faint small" }, "Not a member of a group: a label is recorded, nothing is trained.")];
  if (member.group_state === "eaten") return [h("p", { class: "faint small" }, "Its group was already trained: a label comes too late to change that.")];
  if (member.hold) return [h("p", { class: "notice notice-warn small" }, `Held for review${member.hold_reason ? `: ${member.hold_reason}` : ""}. A label releases it.`)];
  return [h("p", { class: "faint small" }, "Its group was not trained yet: a label changes what is learnt.")];
}
