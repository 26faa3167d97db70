// @ts-check
/**
 * The new-run form: checks while typing, shows what differs, reads and writes TOML.
 *
 * From:  the form's controls. To: the check endpoint (gyre_web.runs.form_views), whose answer is drawn here.
 * Holds: an older answer never overwrites a newer one; the server alone judges values.
 */

import { csrfToken, isTyping, toast } from "./base.js";

/** @typedef {{field: string, message: string, remedy: string}} FieldError */
/** @typedef {{field: string, value: string, base: string}} Difference */
/** @typedef {{ok: boolean, errors: FieldError[], differences: Difference[]|null, clone_differences?: Difference[]|null, toml: string|null, estimate: any}} Check */

const form = /** @type {HTMLFormElement} */ (document.getElementById("run-form"));
const start = /** @type {HTMLButtonElement} */ (document.getElementById("start"));
const verdict = /** @type {HTMLElement} */ (document.getElementById("verdict"));
const toml = /** @type {HTMLTextAreaElement} */ (document.getElementById("toml"));
const tomlError = /** @type {HTMLElement} */ (document.getElementById("toml-error"));
let asked = 0;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** @param {string} tag @param {string} text @param {string} [className] */
function element(tag, text, className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
}

/** @returns {HTMLElement[]} */
const rows = () => [.../** @type {NodeListOf<HTMLElement>} */ (form.querySelectorAll("[data-field]"))];

/** @param {HTMLElement} row */
const control = (row) => /** @type {HTMLInputElement | HTMLSelectElement} */ (row.querySelector("input, select"));

function markChanged() {
  for (const row of rows()) {
    if (row.dataset.default === undefined) continue;
    const changed = control(row).value.trim() !== row.dataset.default;
    row.classList.toggle("is-changed", changed);
    const reset = row.querySelector("[data-reset]");
    if (reset instanceof HTMLElement) reset.hidden = !changed;
  }
}

/** The row an error belongs to: its own, or the first of the table it names. @param {string} field */
function rowOf(field) {
  const all = rows();
  return all.find((row) => row.dataset.field === field) ?? all.find((row) => field && row.dataset.field?.startsWith(`${field}.`));
}

/** @param {FieldError[]} errors */
function drawErrors(errors) {
  for (const row of rows()) {
    control(row).removeAttribute("aria-invalid");
    const slot = /** @type {HTMLElement} */ (row.querySelector(".control-error"));
    slot.hidden = true;
    slot.textContent = "";
  }
  /** @type {Map<string, number>} */
  const counts = new Map();
  /** @type {FieldError[]} */
  const homeless = [];
  for (const error of errors) {
    const row = rowOf(error.field);
    if (!row) {
      homeless.push(error);
      continue;
    }
    control(row).setAttribute("aria-invalid", "true");
    const slot = /** @type {HTMLElement} */ (row.querySelector(".control-error"));
    slot.hidden = false;
    slot.textContent = `${slot.textContent ? `${slot.textContent} ` : ""}${error.message} ${error.remedy}`;
    const section = row.closest(".form-section")?.id.replace("section-", "") ?? "";
    counts.set(section, (counts.get(section) ?? 0) + 1);
  }
  for (const link of form.querySelectorAll("[data-section]")) {
    const badge = /** @type {HTMLElement} */ (link.querySelector(".nav-count"));
    const number = counts.get(/** @type {HTMLElement} */ (link).dataset.section ?? "") ?? 0;
    badge.hidden = number === 0;
    badge.textContent = String(number);
  }
  return homeless;
}

/** @param {Check} check @param {FieldError[]} homeless */
function drawVerdict(check, homeless) {
  start.setAttribute("aria-disabled", String(!check.ok));
  verdict.className = check.ok ? "small good" : "small bad";
  verdict.replaceChildren(check.ok ? "Everything fits together." : `${check.errors.length} ${check.errors.length === 1 ? "field is" : "fields are"} wrong:`);
  if (check.ok) return;
  const list = document.createElement("ul");
  for (const error of check.errors) {
    const item = document.createElement("li");
    if (homeless.includes(error)) item.textContent = `${error.field} ${error.message} ${error.remedy}`.trim();
    else {
      const jump = element("button", error.field, "link-button mono");
      /** @type {HTMLButtonElement} */ (jump).type = "button";
      jump.addEventListener("click", () => {
        const row = rowOf(error.field);
        if (row) control(row).focus();
      });
      item.append(jump);
    }
    list.append(item);
  }
  verdict.append(list);
}

/** @param {string} id @param {Difference[] | null | undefined} differences */
function drawDifferences(id, differences) {
  const box = document.getElementById(id);
  if (!box || !differences) return;
  box.replaceChildren();
  if (!differences.length) box.append(element("dt", "Nothing.", "muted"));
  for (const entry of differences) {
    const value = document.createElement("dd");
    value.append(element("s", entry.base), ` ${entry.value}`);
    box.append(element("dt", entry.field), value);
  }
}

/** @param {number} bytes */
const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;

/** @param {any} estimate */
function drawEstimate(estimate) {
  const box = /** @type {HTMLElement} */ (document.getElementById("estimate"));
  const list = /** @type {HTMLElement} */ (document.getElementById("warnings"));
  box.replaceChildren();
  list.replaceChildren();
  if (!estimate) {
    box.append(element("dt", "After the fields are right.", "muted"));
    return;
  }
  const hours = estimate.hours < 1 ? `${Math.max(1, Math.round(estimate.hours * 60))} min` : `${estimate.hours.toFixed(1)} h`;
  const rollouts = /** @type {number[]} */ (Object.values(estimate.rollouts)).reduce((sum, n) => sum + n, 0);
  const lines = [
    ["Time", `about ${hours}${estimate.measured ? ", measured" : ""}`],
    ["Rollouts", rollouts.toLocaleString()],
    ["Sampled tokens", estimate.tokens.toLocaleString()],
    ["Trainer memory", gigabytes(estimate.trainer_memory_bytes)],
    ["Engine memory", gigabytes(estimate.engine_memory_bytes)],
    ["Disk", gigabytes(estimate.disk_bytes)],
  ];
  for (const [name, value] of lines) box.append(element("dt", name), element("dd", value));
  for (const warning of estimate.warnings) list.append(element("li", warning));
}

/** @param {Check} check */
function draw(check) {
  drawVerdict(check, drawErrors(check.errors));
  drawDifferences("differences", check.differences);
  drawDifferences("clone-differences", check.clone_differences);
  drawEstimate(check.estimate);
  if (check.toml !== null && document.activeElement !== toml) toml.value = check.toml;
}

/** Show the sections that the chosen kind of run reads. */
function showKind() {
  const kind = /** @type {HTMLSelectElement | null} */ (form.querySelector('[name="kind"]'))?.value ?? "rl";
  for (const node of form.querySelectorAll("[data-kinds]")) {
    /** @type {HTMLElement} */ (node).hidden = !(/** @type {HTMLElement} */ (node).dataset.kinds ?? "").split(" ").includes(kind);
  }
}

async function ask() {
  const mine = ++asked;
  markChanged();
  showKind();
  try {
    const response = await fetch(form.dataset.checkUrl ?? "", { method: "POST", body: new FormData(form) });
    if (!response.ok) throw new Error(String(response.status));
    const check = await response.json();
    if (mine === asked) draw(check);
  } catch {
    if (mine === asked) {
      verdict.className = "small warn";
      verdict.textContent = "Not checked: the server cannot be reached. It will be checked again as you type.";
    }
  }
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(ask, 200);
}

/** Give every table of the mixture its own number, in order. */
function renumber() {
  form.querySelectorAll("[data-part]").forEach((part, index) => {
    for (const row of part.querySelectorAll("[data-field]")) {
      const node = /** @type {HTMLElement} */ (row);
      const name = (node.dataset.field ?? "").replace(/\.\d+\./, `.${index}.`);
      node.dataset.field = name;
      control(node).name = name;
    }
  });
}

function addPart() {
  const parts = form.querySelectorAll("[data-part]");
  const last = parts[parts.length - 1];
  last.after(last.cloneNode(true));
  renumber();
}

async function readToml() {
  const body = new FormData();
  body.set("toml", toml.value);
  const response = await fetch(form.dataset.tomlUrl ?? "", { method: "POST", body, headers: { "X-CSRFToken": csrfToken() } });
  const answer = await response.json();
  tomlError.hidden = response.ok && !answer.errors.length;
  if (!response.ok) {
    tomlError.textContent = answer.error;
    return;
  }
  tomlError.textContent = answer.errors.map((/** @type {FieldError} */ e) => `${e.field}: ${e.message} ${e.remedy}`).join(" ");
  fill(answer.values);
  toast(answer.errors.length ? "Read, with errors that are marked." : "Read into the form.", answer.errors.length ? "warning" : "success");
  await ask();
}

/** @param {Record<string, string>} values */
function fill(values) {
  const needed = new Set(Object.keys(values).map((name) => name.match(/^tasks\.mixture\.(\d+)\./)?.[1]).filter(Boolean)).size || 1;
  while (form.querySelectorAll("[data-part]").length < needed) addPart();
  while (form.querySelectorAll("[data-part]").length > needed) form.querySelector("[data-part]:last-of-type")?.remove();
  renumber();
  for (const row of rows()) {
    const name = row.dataset.field ?? "";
    if (!(name in values)) continue;
    const node = control(row);
    if (node instanceof HTMLSelectElement && ![...node.options].some((option) => option.value === values[name])) {
      node.add(new Option(values[name]));
    }
    node.value = values[name];
  }
}

/** @param {Element} tab */
function showTab(tab) {
  for (const other of form.querySelectorAll("[role=tab]")) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    const panel = document.getElementById(other.getAttribute("aria-controls") ?? "");
    if (panel) panel.hidden = !chosen;
  }
}

form.addEventListener("input", (event) => {
  if (event.target !== toml) askSoon();
});
form.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (target.matches("[role=tab]")) showTab(target);
  const reset = target.closest("[data-reset]");
  if (reset) {
    event.preventDefault();
    const row = /** @type {HTMLElement} */ (reset.closest("[data-field]"));
    control(row).value = row.dataset.default ?? "";
    askSoon();
  }
  if (target.closest("[data-add-part]")) {
    addPart();
    askSoon();
  }
  if (target.closest("[data-remove-part]")) {
    event.preventDefault();
    target.closest("[data-part]")?.remove();
    renumber();
    askSoon();
  }
  if (target.id === "read-toml") void readToml();
});
form.addEventListener("submit", (event) => {
  if (start.getAttribute("aria-disabled") === "true") {
    event.preventDefault();
    const wrong = form.querySelector('[aria-invalid="true"]');
    if (wrong instanceof HTMLElement) wrong.focus();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(start);
  else if (event.key === "Enter" && isTyping(event.target) && event.target instanceof HTMLInputElement) event.preventDefault();
});

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of form.querySelectorAll("[data-section]")) {
        link.classList.toggle("is-here", `section-${/** @type {HTMLElement} */ (link).dataset.section}` === entry.target.id);
      }
    }
  },
  { rootMargin: "-80px 0px -70% 0px" },
);
for (const section of form.querySelectorAll(".form-section[id]")) watcher.observe(section);

markChanged();
showKind();
draw(JSON.parse(document.getElementById("first-check")?.textContent ?? "{}"));
