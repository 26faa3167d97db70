// @ts-check
/**
 * The rollout page: puts state, live stream, address and views together.
 *
 * From:  templates/watch/rollout.html (data attributes), /rollouts/<id>/snapshot, /live.
 * Holds: everything on the page is drawn from `state`; a reload at any moment shows the same.
 */

import { readAddress, TABS, writeAddress } from "./address.js";
import { branchesOf, chooseBranch, pathTo } from "./branches.js";
import { find, getJson } from "./dom.js";
import { clearHighlight, FindView, highlight } from "./find_view.js";
import { count, duration } from "./format.js";
import { drawHeader, drawLiveness } from "./header_view.js";
import { bindKeys } from "./keys.js";
import { nextLens } from "./lens.js";
import { drawLegend, drawLensSwitch } from "./lens_view.js";
import { LiveClient, liveUrl } from "./live_client.js";
import { MessageLoader, TokenLoader } from "./loaders.js";
import { NodeList } from "./node_list.js";
import { drawError } from "./panels.js";
import { applyEvent, emptyState, stateFrom } from "./rollout_data.js";
import { Sections } from "./sections.js";
import { Selection } from "./selection.js";
import { SidePanels } from "./side_panels.js";
import { TreeView } from "./tree_view.js";

/** @typedef {import("./branches.js").Branch} Branch */
/** @typedef {import("./live_client.js").Entry} Entry */

export class RolloutPage {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.base = root.dataset.base ?? "";
    this.stream = `rollout:${root.dataset.id}`;
    this.view = readAddress(location.search);
    this.state = emptyState();
    /** @type {Branch[]} */
    this.branches = [];
    /** @type {Branch|null} */
    this.branch = null;
    /** @type {number[]} */
    this.path = [];
    this.lag = 0;
    this.newTokens = 0;
    this.scheduled = false;
    this.timelineBusy = false;
    /** @type {any} */
    this.scrollTimer = 0;
    this.dirty = clean();
    this.scroller = find("[data-scroller]", root);
    this.panel = find("[data-panel]", root);
    this.more = find("[data-more]", root);
    this.messages = this.#messageLoader();
    this.tokens = this.#tokenLoader();
    this.sections = new Sections(this);
    this.selection = new Selection(this, find("[data-inspector]", root));
    this.sides = new SidePanels(this);
    this.list = new NodeList(this.scroller, find("[data-column]", root), this.sections, {
      onFollow: () => this.#followed(), onScroll: (key) => this.#scrolled(key),
    });
    this.list.following = this.view.node === null;
    this.tree = new TreeView(find("[data-tree]", root), {
      onBranch: (leaf) => this.chooseBranch(leaf), onNode: (index) => this.selection.select(index, null),
    });
    this.finder = new FindView(find("[data-find-box]", root), this.base, (index, text) => this.#found(index, text));
    this.client = new LiveClient(liveUrl(location), { onStatus: () => this.drawLiveness() });
  }

  async start() {
    try {
      await this.#load();
    } catch (error) {
      this.panel.hidden = false;
      this.scroller.hidden = true;
      drawError(this.panel, /** @type {Error} */ (error), () => location.reload());
      return;
    }
    this.#bind();
    this.drawTree();
    this.showTab(this.view.tab, false);
    if (this.view.node !== null) this.selection.select(this.view.node, this.view.token, false);
    else this.selection.inspectNothing();
    this.#subscribe();
    setInterval(() => this.drawLiveness(), 1000);
    void this.loadTimeline();
  }

  async #load() {
    const at = this.view.node === null ? "" : `?at=${this.view.node}`;
    this.state = stateFrom(await getJson(`${this.base}/snapshot${at}`));
    this.messages = this.#messageLoader();
    this.tokens = this.#tokenLoader();
    document.dispatchEvent(new CustomEvent("gyre:labels", { detail: { labels: this.state.labels, rollout: this.state.rollout } }));
  }

  #messageLoader() {
    return new MessageLoader(this.base, this.state, (indexes) => this.list.refresh(indexes.map(String), false));
  }

  #tokenLoader() {
    return new TokenLoader(this.base, (indexes) => this.selection.tokensCame(indexes));
  }

  #subscribe() {
    this.client.subscribe(this.stream, this.state.position, {
      onEntries: (entries, lag) => this.#apply(entries, lag),
      onReset: () => void this.reload(),
      onClosed: () => this.drawLiveness(),
    });
    this.drawLiveness();
  }

  /** A fresh snapshot, in place: after a reset, a jump, a label, or the end. */
  async reload() {
    try {
      await this.#load();
    } catch {
      setTimeout(() => void this.reload(), 2000);
      return;
    }
    this.#subscribe();
    this.drawTree();
    this.list.redraw(this.list.topKey());
    this.sides.refresh();
    void this.loadTimeline();
  }

  // ---- live ----

  /** @param {Entry[]} entries @param {number} lag */
  #apply(entries, lag) {
    this.lag = lag;
    const wasLive = this.isLive();
    for (const entry of entries) {
      applyEvent(this.state, entry);
      this.#mark(entry);
    }
    this.#schedule();
    if (wasLive && !this.isLive()) setTimeout(() => void this.reload(), 300);
  }

  /** @param {Entry} entry */
  #mark({ kind, data }) {
    const { dirty } = this;
    if (kind === "output" || kind === "verifier") dirty.output = true;
    else dirty.header = true;
    if (kind === "tokens") {
      if (!this.branches.some((branch) => branch.call === data.call)) dirty.tree = true;
      dirty.keys.add(`live:${data.call}`);
      if (!this.list.following) this.newTokens += data.ids.length;
    } else if (kind === "node") {
      dirty.tree = true;
      dirty.keys.add(String(data.index));
    } else if (kind === "call") {
      dirty.tree = true;
      dirty.keys.add(`live:${data.call}`);
      for (const node of this.state.nodes.values()) if (node.call === data.call) dirty.keys.add(String(node.index));
      if (data.state !== "open") void this.loadTimeline();
    }
  }

  #schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      const dirty = this.dirty;
      this.dirty = clean();
      if (dirty.tree) this.drawTree();
      this.list.refresh(dirty.keys);
      if (dirty.header) drawHeader(find("[data-header]", this.root), this.state);
      if (dirty.output) this.sides.outputCame();
      this.drawLiveness();
      this.#drawMore();
    });
  }

  drawTree() {
    this.branches = branchesOf(this.state);
    const read = this.list.following ? null : (this.path[this.path.length - 1] ?? null);
    this.branch = chooseBranch(this.branches, this.state, { leaf: this.view.branch, at: this.view.node ?? read });
    this.path = this.branch ? pathTo(this.state, this.branch.node) : [];
    const keys = this.path.map(String);
    if (this.branch?.call) keys.push(`live:${this.branch.call}`);
    this.list.setKeys(keys);
    this.tree.draw(this.branches, this.branch);
    this.tree.drawSpark(this.state, this.path, this.selection.reading());
    find("[data-empty]", this.root).hidden = keys.length > 0 || this.isSide();
    drawHeader(find("[data-header]", this.root), this.state);
    this.#drawLens();
  }

  isLive() {
    return this.state.rollout.state !== "ended";
  }

  isSide() {
    return this.view.tab !== "conversation" && this.view.tab !== "tokens";
  }

  drawLiveness() {
    const isOver = !this.isLive() && this.client.status.state !== "ended";
    drawLiveness(find("[data-liveness]", this.root), this.client.status, { lag: this.lag, isOver });
  }

  // ---- what people do ----

  #bind() {
    bindKeys(this);
    this.more.addEventListener("click", () => this.list.setFollowing(true));
    for (const button of this.root.querySelectorAll("[data-tab]")) {
      button.addEventListener("click", () => this.showTab(/** @type {HTMLElement} */ (button).dataset.tab ?? ""));
    }
    const column = find("[data-column]", this.root);
    column.addEventListener("mouseover", (event) => this.selection.pointed(event, false));
    column.addEventListener("click", (event) => this.selection.pointed(event, true));
    globalThis.addEventListener("popstate", () => {
      this.view = readAddress(location.search);
      this.drawTree();
      this.showTab(this.view.tab, false);
      if (this.view.node !== null) this.selection.select(this.view.node, this.view.token, false);
    });
    document.addEventListener("gyre:labelled", () => void this.reload());
  }

  /** @param {string} tab @param {boolean} [push] */
  showTab(tab, push = true) {
    if (!TABS.includes(tab)) return;
    const anchor = this.list.topKey();
    this.view.tab = tab;
    for (const button of this.root.querySelectorAll("[data-tab]")) {
      button.setAttribute("aria-selected", String(/** @type {HTMLElement} */ (button).dataset.tab === tab));
    }
    this.scroller.hidden = this.isSide();
    this.panel.hidden = !this.isSide();
    find("[data-lens-bar]", this.root).hidden = tab !== "tokens";
    this.#drawLens();
    if (this.isSide()) void this.sides.show(tab);
    else this.list.redraw(this.view.node !== null && !this.list.following ? String(this.view.node) : anchor);
    this.#drawMore();
    if (push) this.writeAddress(true);
  }

  /** @param {string} key */
  setLens(key) {
    this.view.lens = key;
    if (this.view.tab !== "tokens") this.showTab("tokens", false);
    else this.list.redraw(this.list.topKey());
    this.#drawLens();
    this.writeAddress(true);
  }

  cycleLens() {
    this.setLens(this.view.tab === "tokens" ? nextLens(this.view.lens).key : this.view.lens);
  }

  #drawLens() {
    if (this.view.tab !== "tokens") return;
    drawLensSwitch(find("[data-lenses]", this.root), this.sections.lens(), (key) => this.setLens(key));
    drawLegend(find("[data-legend]", this.root), this.sections.lens(), this.sections.range());
  }

  /** @param {string} leaf */
  chooseBranch(leaf) {
    this.view.branch = leaf.startsWith("live:") ? null : leaf;
    this.view.node = this.view.token = null;
    this.drawTree();
    this.writeAddress(true);
  }

  /** @param {number} by */
  stepBranch(by) {
    const next = this.branches[this.branches.findIndex((branch) => branch === this.branch) + by];
    if (next) this.chooseBranch(next.leaf);
  }

  /** @param {number} index @param {string} text */
  #found(index, text) {
    this.view.branch = null;
    this.selection.select(index, null);
    clearHighlight();
    setTimeout(() => {
      const body = this.list.bodyOf(String(index));
      if (body) highlight(body, text);
    }, 80);
  }

  #followed() {
    if (this.list.following) {
      this.newTokens = 0;
      if (this.view.token === null) this.view.node = null;
    }
    this.#drawMore();
    this.tree.drawSpark(this.state, this.path, this.selection.reading());
    this.writeAddress(false);
  }

  /** @param {string|null} key */
  #scrolled(key) {
    if (this.scrollTimer) return;
    this.scrollTimer = setTimeout(() => {
      this.scrollTimer = 0;
      const at = key === null || key.startsWith("live:") ? null : Number(key);
      this.tree.drawSpark(this.state, this.path, this.list.following ? null : at);
    }, 120);
  }

  #drawMore() {
    this.more.hidden = this.list.following || this.isSide() || !this.isLive();
    this.more.textContent = this.newTokens ? `▼ ${count(this.newTokens)} new` : "▼ follow";
  }

  async loadTimeline() {
    if (this.timelineBusy) return;
    this.timelineBusy = true;
    try {
      const timeline = await getJson(`${this.base}/timeline`);
      this.list.refresh(this.sections.readToolTimes(timeline));
      const { started_at, ended_at } = timeline.rollout;
      find("[data-elapsed]", this.root).textContent = started_at ? duration(((ended_at ?? Date.now()) - started_at) / 1000) : "";
    } catch {
      // Only durations of tools are missing then; the next call's end asks again.
    }
    this.timelineBusy = false;
  }

  /** @param {boolean} push */
  writeAddress(push) {
    const address = location.pathname + writeAddress(this.view);
    if (address === location.pathname + location.search) return;
    if (push) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
}

/** What has to be drawn again at the next frame. */
function clean() {
  return { tree: false, header: false, output: false, keys: /** @type {Set<string>} */ (new Set()) };
}

const root = document.querySelector("[data-rollout-page]");
if (root instanceof HTMLElement) void new RolloutPage(root).start();
