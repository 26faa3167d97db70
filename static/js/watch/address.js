// @ts-check
/** What of the view is in the address: ?tab=tokens&lens=advantage&at=n417.1203&branch=902. Pure. */

export const TABS = ["conversation", "tokens", "terminal", "changes", "verifier", "network", "timeline", "raw"];

/** @typedef {{tab: string, lens: string, node: number|null, token: number|null, branch: string|null}} View */

/** @param {string} search @returns {View} */
export function readAddress(search) {
  const query = new URLSearchParams(search);
  const at = /^n(\d{1,9})(?:\.(\d{1,9}))?$/.exec(query.get("at") ?? "");
  const tab = query.get("tab") ?? (query.has("lens") || (at && at[2] !== undefined) ? "tokens" : "conversation");
  return {
    tab: TABS.includes(tab) ? tab : "conversation",
    lens: query.get("lens") ?? "logprob",
    node: at ? Number(at[1]) : null,
    token: at && at[2] !== undefined ? Number(at[2]) : null,
    branch: query.get("branch"),
  };
}

/** @param {View} view @returns {string} "" or "?..." */
export function writeAddress(view) {
  const query = new URLSearchParams();
  if (view.tab !== "conversation") query.set("tab", view.tab);
  if (view.tab === "tokens" && view.lens !== "logprob") query.set("lens", view.lens);
  if (view.node !== null) query.set("at", view.token === null ? `n${view.node}` : `n${view.node}.${view.token}`);
  if (view.branch !== null) query.set("branch", view.branch);
  const text = query.toString();
  return text ? `?${text}` : "";
}
