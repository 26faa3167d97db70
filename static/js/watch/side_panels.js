// @ts-check
/** Loads and keeps the tabs beside conversation and tokens. */

import { getJson } from "./dom.js";
import { drawNetwork } from "./network_panel.js";
import { appendTerminal, drawChanges, drawError, drawLoading, drawRaw, drawRequest, drawTerminal, drawTimeline, drawVerifier } from "./panels.js";

const NETWORK_MS = 3000;

export class SidePanels {
  /** @param {import("./rollout_page.js").RolloutPage} page */
  constructor(page) {
    this.page = page;
    this.tab = "";
    this.raw = false;
    this.rawFirst = 0;
    /** @type {[number, number]|null} what of the live log the open panel shows */
    this.position = null;
    this.generation = 0;
    this.timer = 0;
  }

  /** @param {string} tab @param {boolean} [again] what is shown stays until the new is there */
  async show(tab, again = false) {
    this.tab = tab;
    clearTimeout(this.timer);
    const generation = ++this.generation;
    const root = this.page.panel;
    root.dataset.tab = tab;
    if (!again) drawLoading(root);
    try {
      const query = tab === "raw" ? `?from=${this.rawFirst}&count=10` : "";
      const data = await getJson(`${this.page.base}/${tab}${query}`);
      if (generation === this.generation) this.#draw(tab, root, data);
    } catch (error) {
      if (generation === this.generation) drawError(root, /** @type {Error} */ (error), () => void this.show(tab));
    }
  }

  /** @param {string} tab @param {HTMLElement} root @param {any} data */
  #draw(tab, root, data) {
    this.position = data.position ?? null;
    if (tab === "terminal") {
      drawTerminal(root, data, this.raw, (raw) => {
        this.raw = raw;
        this.#draw(tab, root, data);
      });
    } else if (tab === "changes") drawChanges(root, data);
    else if (tab === "verifier") drawVerifier(root, data);
    else if (tab === "network") drawNetwork(root, data);
    else if (tab === "timeline") drawTimeline(root, data, (node) => this.page.selection.select(node, null));
    else {
      drawRaw(root, data, (first) => {
        this.rawFirst = first;
        void this.show("raw");
      });
    }
    if (data.source === "live") this.outputCame();
    if (tab === "network" && data.live) {
      this.timer = window.setTimeout(() => {
        if (this.page.view.tab === "network") void this.show("network", true);
      }, NETWORK_MS);
    }
  }

  /** Appends what came since; while the panel is at its bottom it stays there. */
  outputCame() {
    const kind = this.tab === "terminal" ? "output" : "verifier";
    if (this.page.view.tab !== this.tab || (this.tab !== "terminal" && this.tab !== "verifier")) return;
    const root = this.page.panel;
    const screen = root.querySelector("pre.terminal");
    const chunks = this.page.state[kind].filter((chunk) => after([chunk.epoch, chunk.n], this.position));
    if (!chunks.length) return;
    if (!(screen instanceof HTMLElement)) {
      void this.show(this.tab);
      return;
    }
    const atBottom = root.scrollHeight - root.scrollTop - root.clientHeight < 48;
    appendTerminal(screen, chunks.map((chunk) => chunk.text).join(""), this.raw);
    const last = chunks[chunks.length - 1];
    this.position = [last.epoch, last.n];
    if (atBottom) root.scrollTop = root.scrollHeight;
  }

  refresh() {
    if (this.page.isSide()) void this.show(this.page.view.tab);
  }

  /** @param {number} index */
  async showRequest(index) {
    this.page.showTab("raw", true);
    const generation = ++this.generation;
    const data = await getJson(`${this.page.base}/calls/${index}/request`);
    if (generation === this.generation) drawRequest(this.page.panel, data, index, () => void this.show("raw"));
  }
}

/** @param {[number, number]} position @param {[number, number]|null} reference */
function after(position, reference) {
  if (!reference) return true;
  return position[0] > reference[0] || (position[0] === reference[0] && position[1] > reference[1]);
}
