// @ts-check
/**
 * What every page has: relative times, hints, menus, dialogs, toasts, theme, keyboard help.
 *
 * Holds: shortcuts are silent while typing; text goes in through textContent.
 */

/** @param {number} seconds */
export function durationText(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36000) return `${(seconds / 3600).toFixed(1).replace(/\.0$/, "")} h`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** @param {ParentNode} [root] */
export function refreshTimes(root = document) {
  const now = Date.now();
  for (const node of root.querySelectorAll("time[data-ago]")) {
    const at = new Date(/** @type {HTMLTimeElement} */ (node).dateTime);
    const seconds = (now - at.getTime()) / 1000;
    const text = seconds < 0 ? `in ${durationText(-seconds)}` : seconds < 5 ? "just now" : `${durationText(seconds)} ago`;
    if (node.textContent !== text) node.textContent = text;
    /** @type {HTMLElement} */ (node).title = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  }
}

/** @param {string} text @param {"success"|"error"|"warning"|"info"} [level] */
export function toast(text, level = "info") {
  const box = document.createElement("div");
  box.className = `toast toast-${level}`;
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "toast-close";
  close.setAttribute("aria-label", "Dismiss");
  close.textContent = "×";
  box.append(words, close);
  document.getElementById("toasts")?.append(box);
  if (level !== "error") setTimeout(() => box.remove(), 6000);
}

/** The CSRF token that Django expects back. */
export function csrfToken() {
  const headers = document.body.getAttribute("hx-headers");
  return headers ? JSON.parse(headers)["X-CSRFToken"] : "";
}

/** @param {string} url @param {unknown} data */
export async function postJson(url, data) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRFToken": csrfToken() },
    body: JSON.stringify(data),
  });
  return { status: response.status, body: await response.json().catch(() => null) };
}

/** @param {EventTarget | null} target */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Put a float below (or, without room, above) what opened it. @param {HTMLElement} float @param {Element} opener @param {boolean} end */
function place(float, opener, end) {
  const box = opener.getBoundingClientRect();
  const { width, height } = float.getBoundingClientRect();
  const left = end ? box.right - width : box.left - 12;
  const below = box.bottom + 8;
  const top = below + height > innerHeight && box.top > height + 8 ? box.top - height - 8 : below;
  float.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  float.style.top = `${top}px`;
}

/** @type {HTMLElement | null} */
let hintBox = null;

/** @param {HTMLElement} button */
function showHint(button) {
  hintBox?.remove();
  const box = document.createElement("div");
  box.className = "popover";
  box.popover = "auto";
  const words = document.createElement("span");
  words.textContent = button.dataset.hint ?? "";
  box.append(words);
  if (button.dataset.key) {
    const key = document.createElement("span");
    key.className = "raw-key";
    key.textContent = button.dataset.key;
    box.append(key);
  }
  (button.closest("dialog") ?? document.body).append(box);
  box.showPopover();
  place(box, button, false);
  box.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState === "closed") box.remove();
  });
  hintBox = box;
}

/** @param {HTMLElement} group @param {string} theme */
async function setTheme(group, theme) {
  document.documentElement.dataset.theme = theme;
  for (const button of group.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.value === theme));
  document.dispatchEvent(new CustomEvent("gyre:theme"));
  await postJson(group.dataset.url ?? "", { theme });
}

/** @param {MouseEvent} event */
function onClick(event) {
  const target = /** @type {Element} */ (event.target);
  const hint = target.closest(".hint");
  if (hint) return showHint(/** @type {HTMLElement} */ (hint));
  const opener = target.closest("[data-open]");
  if (opener) {
    const dialog = document.getElementById(/** @type {HTMLElement} */ (opener).dataset.open ?? "");
    if (dialog instanceof HTMLDialogElement) dialog.showModal();
    return;
  }
  if (target.closest("[data-close]") || (target instanceof HTMLDialogElement && target.open)) {
    target.closest("dialog")?.close();
    return;
  }
  if (target.closest(".toast-close")) target.closest(".toast")?.remove();
  const copier = target.closest("[data-copy]");
  if (copier) {
    const source = document.getElementById(/** @type {HTMLElement} */ (copier).dataset.copy ?? "");
    const text = source instanceof HTMLTextAreaElement || source instanceof HTMLInputElement ? source.value : source?.textContent;
    navigator.clipboard.writeText(text ?? "").then(() => toast("Copied.", "success"), () => toast("The browser refused to copy.", "error"));
  }
  const theme = target.closest("[data-theme-switch] button");
  if (theme) void setTheme(/** @type {HTMLElement} */ (theme.parentElement), /** @type {HTMLButtonElement} */ (theme).value);
}

let pendingG = 0;
const PLACES = { r: "/", v: "/review", t: "/tasks", m: "/models", c: "/cluster" };

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "?") {
    const keys = document.getElementById("keys");
    if (keys instanceof HTMLDialogElement && !keys.open) keys.showModal();
    event.preventDefault();
  } else if (event.key === "/") {
    const find = document.querySelector("[data-find]");
    if (find instanceof HTMLElement) {
      find.focus();
      event.preventDefault();
    }
  } else if (Date.now() - pendingG < 900 && event.key in PLACES) {
    location.href = PLACES[/** @type {keyof typeof PLACES} */ (event.key)];
  }
  pendingG = event.key === "g" ? Date.now() : 0;
}

document.addEventListener("click", onClick);
document.addEventListener("keydown", onKey);
document.addEventListener("change", (event) => {
  const control = /** @type {HTMLSelectElement} */ (event.target);
  if (control.matches("[data-submit]")) control.form?.requestSubmit();
});
document.addEventListener("htmx:afterSwap", () => refreshTimes());
document.addEventListener("htmx:responseError", (event) => {
  const { xhr } = /** @type {CustomEvent} */ (event).detail;
  toast(xhr.status === 403 ? "You may not do that." : `The server answered ${xhr.status}. Nothing was changed; try again.`, "error");
});
document.addEventListener("htmx:sendError", () => toast("The server cannot be reached. Nothing was changed; try again.", "error"));
for (const menu of document.querySelectorAll("[popover]")) {
  menu.addEventListener("toggle", (event) => {
    const opener = document.querySelector(`[popovertarget="${menu.id}"]`);
    if (/** @type {ToggleEvent} */ (event).newState === "open" && opener) {
      place(/** @type {HTMLElement} */ (menu), opener, /** @type {HTMLElement} */ (menu).dataset.anchor === "end");
    }
  });
}
for (const note of document.querySelectorAll("#toasts .toast:not(.toast-error)")) setTimeout(() => note.remove(), 8000);
refreshTimes();
setInterval(refreshTimes, 1000);
