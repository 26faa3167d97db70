// @ts-check
/**
 * The label panel: a judgement by keyboard, and the judgements there are.
 *
 * From:  templates/review/label_panel.html. To: outbox.js.
 * Holds: nothing typed is lost: a draft of the rollout is kept until the server acknowledged it.
 */

import { refreshTimes } from "../base.js";
import { find, h, isTyping } from "../watch/dom.js";
import { decimal } from "../watch/format.js";
import { newKey, Outbox } from "./outbox.js";

const VERDICT_KEYS = ["1", "2", "3", "4", "5"];

export class LabelPanel {
  /** @param {HTMLFormElement} form @param {(url: string, data: any) => Promise<{status: number, body: any}>} post */
  constructor(form, post) {
    this.form = form;
    this.draftKey = `gyre.draft.${form.dataset.rollout}`;
    this.clientKey = newKey();
    this.outbox = new Outbox(localStorage, post, (result) => this.#answered(result));
    this.post = post;
    /** @type {Record<string, boolean>} marks on single turns, by node index */
    this.turns = {};
    for (const button of form.querySelectorAll("[data-mark]")) {
      button.addEventListener("click", () => this.#mark(/** @type {HTMLElement} */ (button).dataset.mark === "true"));
    }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    form.addEventListener("input", () => this.#changed());
    form.querySelector("[data-skip]")?.addEventListener("click", () => void this.skip());
    document.addEventListener("keydown", (event) => this.#key(event));
    globalThis.addEventListener("online", () => void this.outbox.send());
    this.#restore();
    void this.outbox.send();
  }

  /** @param {string} name @returns {any} */
  #field(name) {
    return this.form.elements.namedItem(name);
  }

  /** @returns {import("./outbox.js").Judgement} */
  read() {
    const rewardText = this.#field("reward").value.trim().replace("−", "-").replace(",", ".");
    return {
      client_key: this.clientKey,
      verdict: this.#field("verdict").value,
      keep: this.#field("keep").value || "unset",
      reward: rewardText === "" ? null : Number(rewardText),
      reason: this.#field("reason").value,
      note: this.#field("note").value,
      turns: { ...this.turns },
    };
  }

  submit() {
    const judgement = this.read();
    this.#showErrors([]);
    if (judgement.reward !== null && !Number.isFinite(judgement.reward)) {
      this.#showErrors([{ field: "reward", message: "Must be a number, or empty for the verifier's." }]);
      return;
    }
    if ((judgement.reward !== null || judgement.keep === "drop") && !judgement.reason.trim()) {
      this.#showErrors([{ field: "reason", message: "Say why: an override or a drop changes what is trained." }]);
      this.#field("reason").focus();
      return;
    }
    this.#say("saving", "");
    void this.outbox.add({
      url: this.form.dataset.save ?? "", rollout: this.form.dataset.rollout ?? "", judgement,
    });
  }

  async skip() {
    const { skipUrl, nextItem } = this.form.dataset;
    if (!skipUrl || !nextItem) return;
    try {
      await this.post(skipUrl, {});
      location.href = nextItem;
    } catch {
      this.#say("not skipped: the server cannot be reached", "bad");
    }
  }

  /** @param {import("./outbox.js").Result} result */
  #answered(result) {
    if ("waiting" in result) {
      this.#say(`not sent yet (${result.waiting}): kept in this browser, sent again by itself`, "warn");
      return;
    }
    const isHere = result.item.rollout === this.form.dataset.rollout;
    if ("refused" in result) {
      if (isHere) this.#showErrors(result.refused);
      this.#say(isHere ? "not saved" : "a label of another rollout was refused", "bad");
      return;
    }
    if (!isHere) return;
    localStorage.removeItem(this.draftKey);
    this.clientKey = newKey();
    this.form.reset();
    this.turns = {};
    this.#changed();
    localStorage.removeItem(this.draftKey);
    this.#say(`saved: ${result.saved.effect_text}`, result.saved.effect === "too_late" ? "warn" : "good");
    document.dispatchEvent(new CustomEvent("gyre:labelled", { detail: result.saved }));
    if (this.form.dataset.nextItem) location.href = this.form.dataset.nextItem;
  }

  /** @param {string} text @param {string} tone */
  #say(text, tone) {
    const status = find("[data-label-status]", this.form);
    status.textContent = text;
    status.className = `small ${tone}`;
  }

  /** @param {{field: string, message: string}[]} errors */
  #showErrors(errors) {
    for (const place of this.form.querySelectorAll("[data-error]")) {
      const element = /** @type {HTMLElement} */ (place);
      const name = element.dataset.error;
      const own = errors.filter((error) => error.field === name || (name === "verdict" && !this.form.querySelector(`[data-error="${error.field}"]`)));
      element.textContent = own.map((error) => error.message).join(" ");
      element.hidden = !own.length;
    }
    this.#changed();
  }

  #changed() {
    const { keep, reward, ...rest } = this.read();
    this.#drawMarks();
    const reasonField = find("[data-reason-field]", this.form);
    reasonField.hidden = reward === null && keep !== "drop" && !rest.reason;
    localStorage.setItem(this.draftKey, JSON.stringify({ ...rest, keep, reward: this.#field("reward").value }));
  }

  #restore() {
    try {
      const draft = JSON.parse(localStorage.getItem(this.draftKey) ?? "null");
      if (!draft) return;
      for (const name of ["verdict", "keep", "reward", "reason", "note"]) this.#field(name).value = draft[name];
      this.turns = draft.turns ?? {};
      this.#changed();
    } catch {
      localStorage.removeItem(this.draftKey);
    }
  }

  /** 1 to 5 anywhere; k, d, r, n, u only while the panel has the focus. @param {KeyboardEvent} event */
  #key(event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      this.submit();
      return;
    }
    const inPanel = event.target instanceof Node && this.form.contains(event.target);
    if (event.key === "Escape" && inPanel) {
      /** @type {HTMLElement} */ (document.activeElement)?.blur();
      return;
    }
    if ((isTyping(event) && !isRadio(event.target)) || event.ctrlKey || event.metaKey || event.altKey) return;
    const verdict = VERDICT_KEYS.indexOf(event.key);
    if (verdict >= 0) this.#choose("verdict", verdict);
    else if (event.key === "+" || event.key === "-") this.#mark(event.key === "+");
    else if (inPanel && event.key === "k") this.#choose("keep", 1);
    else if (inPanel && event.key === "d") this.#choose("keep", 2);
    else if (inPanel && event.key === "u") this.#choose("keep", 0);
    else if (inPanel && (event.key === "r" || event.key === "n")) this.#field(event.key === "r" ? "reward" : "note").focus();
    else if (inPanel && event.key === "s") void this.skip();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {string} name @param {number} position */
  #choose(name, position) {
    const radio = /** @type {HTMLInputElement} */ (this.form.querySelectorAll(`input[name="${name}"]`)[position]);
    radio.checked = true;
    radio.focus();
    this.#changed();
    if (name === "keep" && position === 2) this.#field("reason").focus();
  }

  /** Of the turn that the address points at; the same mark again takes it away. @param {boolean} right */
  #mark(right) {
    const node = /^n(\d+)/.exec(new URLSearchParams(location.search).get("at") ?? "")?.[1];
    if (!node) {
      this.#say("choose a turn first (j, k)", "warn");
      return;
    }
    if (this.turns[node] === right) delete this.turns[node];
    else this.turns[node] = right;
    this.#changed();
  }

  #drawMarks() {
    const marks = Object.entries(this.turns).map(([node, right]) => h("span", { class: right ? "good" : "bad" }, `n${node} ${right ? "right" : "wrong"} `));
    find("[data-marks]", this.form).replaceChildren(...marks);
  }

  open() {
    this.form.scrollIntoView({ block: "nearest" });
    this.form.focus();
  }
}

/** @param {EventTarget|null} target */
function isRadio(target) {
  return target instanceof HTMLInputElement && target.type === "radio";
}

/**
 * The judgements there are, newest first; superseded ones stay readable.
 * @param {HTMLElement} root
 * @param {any[]} labels
 */
export function drawLabels(root, labels) {
  if (!labels.length) {
    root.replaceChildren(h("p", { class: "faint small" }, "Nobody has judged it yet."));
    return;
  }
  root.replaceChildren(...labels.map(labelItem));
  refreshTimes(root);
}

/** @param {any} label */
function labelItem(label) {
  const what = [
    label.verdict && (label.verdict === "hack" ? "reward hack" : label.verdict),
    label.keep !== "unset" && label.keep,
    Object.keys(label.turns ?? {}).length && `${Object.keys(label.turns).length} turns marked`,
    label.reward !== null && `reward ${decimal(label.reward, 2)}`,
  ].filter(Boolean).join(" · ");
  return h(
    "article",
    { class: `label-item${label.superseded ? " is-superseded" : ""}` },
    h("p", null, h("strong", null, what || "note"), label.superseded && h("span", { class: "faint small" }, " superseded")),
    label.reason && h("p", { class: "small" }, label.reason),
    label.note && h("p", { class: "small muted" }, label.note),
    h("p", { class: "faint small" }, label.author, " · ", h("time", { datetime: label.created_at, "data-ago": true }, ""), " · ", label.effect_text),
  );
}
