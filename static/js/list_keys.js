// @ts-check
/** Keys in tables of things that open: j, k, Enter; and links that name a key (`data-key`). */

import { isTyping } from "./base.js";

const rows = () => [...document.querySelectorAll("[data-rows] tbody tr")];

/** @param {number} by */
function move(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.contains(document.activeElement));
  const next = Math.max(0, Math.min(all.length - 1, now < 0 ? 0 : now + by));
  const link = all[next].querySelector("a");
  link?.focus();
  all[next].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (/^[a-z]$/.test(event.key)) {
    const link = document.querySelector(`a[data-key="${event.key}"]`);
    if (link instanceof HTMLAnchorElement) link.click();
  }
});
