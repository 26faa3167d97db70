// @ts-check
/** Find in a rollout: the server searches the whole record, the page goes to the hits. */

import { find, getJson, h } from "./dom.js";
import { count } from "./format.js";

export class FindView {
  /**
   * @param {HTMLElement} root
   * @param {string} base
   * @param {(index: number, text: string) => void} onHit
   */
  constructor(root, base, onHit) {
    this.base = base;
    this.onHit = onHit;
    this.input = /** @type {HTMLInputElement} */ (find("input", root));
    this.result = find("[data-find-result]", root);
    /** @type {{index: number, snippet: string}[]} */
    this.hits = [];
    this.at = -1;
    this.text = "";
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("input", () => this.input.value || this.#clear());
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === "Escape") {
      this.input.value = "";
      this.#clear();
      this.input.blur();
      event.stopPropagation();
    } else if (event.key === "Enter") {
      event.preventDefault();
      void (this.input.value === this.text && this.hits.length ? this.step(event.shiftKey ? -1 : 1) : this.#search());
    }
  }

  async #search() {
    this.text = this.input.value;
    if (!this.text.trim()) return;
    this.result.textContent = "searching";
    try {
      const data = await getJson(`${this.base}/find?q=${encodeURIComponent(this.text)}`);
      this.hits = data.hits;
      this.total = data.total;
      this.at = -1;
      if (this.hits.length) this.step(1);
      else this.result.textContent = "no node has it";
    } catch (error) {
      this.result.textContent = String(error);
    }
  }

  /** @param {number} by */
  step(by) {
    if (!this.hits.length) return;
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    const hit = this.hits[this.at];
    this.result.replaceChildren(h("span", { title: hit.snippet }, `${count(this.at + 1)} of ${count(this.total ?? this.hits.length)} nodes`));
    this.onHit(hit.index, this.text);
  }

  #clear() {
    this.hits = [];
    this.text = "";
    this.result.textContent = "";
    clearHighlight();
  }
}

/** Marks the text inside an element, without changing its content. @param {HTMLElement} element @param {string} text */
export function highlight(element, text) {
  if (!("highlights" in CSS) || !text) return;
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const wanted = text.toLowerCase();
  for (let node = walker.nextNode(); node && ranges.length < 500; node = walker.nextNode()) {
    const content = (node.nodeValue ?? "").toLowerCase();
    for (let at = content.indexOf(wanted); at !== -1 && ranges.length < 500; at = content.indexOf(wanted, at + wanted.length)) {
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, Math.min(at + text.length, (node.nodeValue ?? "").length));
      ranges.push(range);
    }
  }
  // @ts-ignore: CSS.highlights is not in TypeScript's lib of es2022 dom everywhere
  CSS.highlights.set("found", new Highlight(...ranges));
  ranges[0]?.startContainer.parentElement?.scrollIntoView({ block: "center" });
}

export function clearHighlight() {
  // @ts-ignore: as above
  if ("highlights" in CSS) CSS.highlights.delete("found");
}
