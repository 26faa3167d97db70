// @ts-check
/** Keys of the rollout page. Silent while typing, in dialogs and in the label panel (which has its own). */

import { isTyping } from "./dom.js";

/** @param {import("./rollout_page.js").RolloutPage} page */
export function bindKeys(page) {
  let lastG = 0;
  /** @type {Record<string, () => void>} */
  const keys = {
    j: () => page.selection.stepNode(1),
    k: () => page.selection.stepNode(-1),
    J: () => page.selection.stepNode(1, true),
    K: () => page.selection.stepNode(-1, true),
    h: () => leave(page, "previous"),
    l: () => leave(page, "next"),
    "[": () => page.stepBranch(-1),
    "]": () => page.stepBranch(1),
    G: () => page.list.setFollowing(true),
    t: () => page.cycleLens(),
    f: () => page.list.setFollowing(!page.list.following),
    c: () => compare(page),
    n: () => page.finder.step(1),
    N: () => page.finder.step(-1),
    ArrowRight: () => page.selection.stepToken(1),
    ArrowLeft: () => page.selection.stepToken(-1),
    Escape: () => page.selection.escape(),
  };
  document.addEventListener("keydown", (event) => {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = /** @type {Element} */ (event.target);
    if (target.closest("dialog[open], [data-label-panel]")) return;
    if (event.key === "g") {
      if (Date.now() - lastG < 600 && page.path.length) page.selection.select(page.path[0], null);
      lastG = Date.now();
      return;
    }
    const act = keys[event.key];
    if (!act || (event.key.startsWith("Arrow") && page.view.tab !== "tokens")) return;
    event.preventDefault();
    act();
  });
}

/** @param {import("./rollout_page.js").RolloutPage} page @param {"previous"|"next"} which */
function leave(page, which) {
  const id = page.root.dataset[which];
  if (!id) return;
  const { tab, lens } = page.view;
  const query = new URLSearchParams({ ...(tab !== "conversation" && { tab }), ...(tab === "tokens" && { lens }) });
  location.href = `/rollouts/${id}${query.size ? `?${query}` : ""}`;
}

/** Its group shows the rollouts of the same task side by side. @param {import("./rollout_page.js").RolloutPage} page */
function compare(page) {
  const group = page.root.dataset.group;
  if (group) location.href = `/groups/${group}`;
}
