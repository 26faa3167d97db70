// @ts-check
/**
 * Two rollouts side by side: one lens for both, rows by keyboard, and the judgement of the pair.
 *
 * From:  the rendered page; /rollouts/<id>/nodes/<n>/tokens for a lens.
 * To:    the compare page's save address; the next pair when it was acknowledged.
 * Holds: the same lens on both sides, also in the address; one judgement a save, however often it is sent.
 */

import { postJson, toast } from "../base.js";
import { getJson, h, isTyping } from "../watch/dom.js";
import { lensOf, LENSES, nextLens, rangeOf } from "../watch/lens.js";
import { drawLegend } from "../watch/lens_view.js";
import { drawTokens } from "../watch/token_view.js";

const page = /** @type {HTMLElement} */ (document.querySelector("[data-compare]"));
const switcher = /** @type {HTMLElement} */ (page.querySelector("[data-lenses]"));
const legend = /** @type {HTMLElement} */ (page.querySelector("[data-legend]"));
/** @type {Map<HTMLElement, Node[]>} the text of an entry, while tokens are shown */
const texts = new Map();
/** @type {Map<HTMLElement, import("../watch/token_view.js").Columns[]>} */
const loaded = new Map();
let lens = new URLSearchParams(location.search).get("lens") ?? "text";

/** @returns {HTMLElement[]} */
const entries = () => [.../** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll("[data-entry]"))];

/** @param {HTMLElement} entry */
const bodyOf = (entry) => /** @type {HTMLElement} */ (entry.querySelector("[data-body]"));

/** @param {HTMLElement} entry */
async function load(entry) {
  const pages = loaded.get(entry) ?? [];
  const start = pages.reduce((sum, one) => sum + one.ids.length, 0);
  const address = `/rollouts/${entry.dataset.rollout}/nodes/${entry.dataset.index}/tokens?from=${start}`;
  pages.push(await getJson(address));
  loaded.set(entry, pages);
}

/** @param {HTMLElement} entry @param {[number, number]} range */
function drawEntry(entry, range) {
  const pages = loaded.get(entry);
  if (!pages) return;
  const body = bodyOf(entry);
  if (!texts.has(entry)) texts.set(entry, [...body.childNodes]);
  drawTokens(body, pages, lensOf(lens), range, async () => {
    await load(entry);
    drawEntry(entry, range);
  });
}

/** @returns {[number, number]} */
function range() {
  const versions = [...loaded.values()].flat().flatMap((columns) => columns.versions.filter((v) => v !== null));
  return rangeOf(lensOf(lens), /** @type {number[]} */ (versions));
}

async function showTokens() {
  const wanted = entries().filter((entry) => entry.dataset.sampled === "yes");
  const results = await Promise.allSettled(wanted.filter((entry) => !loaded.has(entry)).map(load));
  if (results.some((result) => result.status === "rejected")) toast("Some tokens could not be loaded; their text stays.", "warning");
  if (lens === "text") return;
  const scale = range();
  for (const entry of wanted) drawEntry(entry, scale);
  drawLegend(legend, lensOf(lens), scale);
}

/** @param {string} key */
async function setLens(key) {
  lens = key;
  const address = new URL(location.href);
  if (key === "text") address.searchParams.delete("lens");
  else address.searchParams.set("lens", key);
  history.replaceState(null, "", address);
  legend.hidden = key === "text";
  for (const button of switcher.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.value === key));
  if (key === "text") {
    for (const [entry, nodes] of texts) bodyOf(entry).replaceChildren(...nodes);
    texts.clear();
    return;
  }
  await showTokens();
}

function drawSwitch() {
  const all = [{ key: "text", name: "text", meaning: "The messages as text." }, ...LENSES];
  switcher.replaceChildren(
    ...all.map((one) => h("button", { type: "button", value: one.key, title: one.meaning, "aria-pressed": String(one.key === lens), onclick: () => void setLens(one.key) }, one.name)),
  );
}

// ---- rows

let here = -1;

/** @param {number} step */
function move(step) {
  const rows = [.../** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll("[data-row]"))].filter((row) => row.offsetParent !== null);
  if (!rows.length) return;
  rows[here]?.classList.remove("is-here");
  here = Math.max(0, Math.min(rows.length - 1, here + step));
  rows[here].classList.add("is-here");
  rows[here].scrollIntoView({ block: "center" });
}

// ---- the judgement

const form = /** @type {HTMLFormElement | null} */ (page.querySelector("[data-judge]"));
let choice = "";
let key = newKey();
let saving = false;

function newKey() {
  return `pair-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`.slice(0, 40);
}

/** @param {string} value */
function choose(value) {
  if (!form) return;
  if (choice !== value) key = newKey();
  choice = value;
  for (const button of form.querySelectorAll("[data-choice]")) {
    button.setAttribute("aria-checked", String(/** @type {HTMLElement} */ (button).dataset.choice === value));
  }
  /** @type {HTMLButtonElement} */ (form.querySelector("[data-save]")).disabled = false;
}

/** @param {string} text @param {string} tone */
function say(text, tone) {
  const box = /** @type {HTMLElement} */ (form?.querySelector("[data-said]"));
  box.className = `small ${tone}`;
  box.textContent = text;
}

async function save() {
  if (!form || !choice || saving) return;
  saving = true;
  say("saving", "muted");
  const reason = /** @type {HTMLInputElement} */ (form.querySelector("[data-reason]")).value;
  try {
    const { status, body } = await postJson(page.dataset.saveUrl ?? "", { a: page.dataset.a, b: page.dataset.b, choice, reason, client_key: key });
    if (status === 200) {
      say("saved", "good");
      if (page.dataset.nextUrl) location.assign(page.dataset.nextUrl);
    } else say((body?.errors ?? []).map((/** @type {{message: string}} */ error) => error.message).join(" ") || `The server answered ${status}; not saved.`, "bad");
  } catch {
    say("The server cannot be reached. Not saved; press Save again.", "bad");
  }
  saving = false;
}

/** @type {Record<string, string>} */
const CHOICE_KEYS = { ArrowLeft: "a", 1: "a", ArrowRight: "b", 2: "b", 0: "tie", x: "neither" };

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    void save();
    return;
  }
  if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "t") void setLens(lens === "text" ? LENSES[0].key : lens === LENSES[LENSES.length - 1].key ? "text" : nextLens(lens).key);
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (form && event.key in CHOICE_KEYS) {
    event.preventDefault();
    choose(CHOICE_KEYS[event.key]);
  } else if (form && event.key === "r") {
    event.preventDefault();
    /** @type {HTMLElement} */ (form.querySelector("[data-reason]")).focus();
  }
});
form?.addEventListener("click", (event) => {
  const button = /** @type {HTMLElement} */ (event.target).closest("[data-choice]");
  if (button) choose(/** @type {HTMLElement} */ (button).dataset.choice ?? "");
});
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  void save();
});

drawSwitch();
if (lens !== "text") void setLens(lens);
