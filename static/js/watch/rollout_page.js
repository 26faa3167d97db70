// @ts-check
/**
 * The rollout page: puts state, live stream, address, keyboard and views together.
 *
 * From:  templates/watch/rollout.html (data attributes), /rollouts/<id>/snapshot, /live.
 * Holds: everything on the page is drawn from `state`; a reload at any moment shows the same.
 */

import { readAddress, TABS, writeAddress } from "./address.js";
import { branchesOf, chooseBranch, pathTo } from "./branches.js";
import { growText, messageBody, nodeHead, streamHead } from "./conversation_view.js";
import { find, getJson, h } from "./dom.js";
import { clearHighlight, FindView, highlight } from "./find_view.js";
import { count, duration } from "./format.js";
import { drawHeader, drawLiveness } from "./header_view.js";
import { drawNode, drawNothing, drawToken } from "./inspector_view.js";
import { bindKeys } from "./keys.js";
import { drawLegend, drawLensSwitch } from "./lens_view.js";
import { lensOf, nextLens, rangeOf } from "./lens.js";
import { LiveClient, liveUrl } from "./live_client.js";
import { MessageLoader, TokenLoader } from "./loaders.js";
import { NodeList } from "./node_list.js";
import { drawError } from "./panels.js";
import { applyEvent, stateFrom } from "./rollout_data.js";
import { SidePanels } from "./side_panels.js";
import { drawTokens, factsOf, growTokens, streamColumns } from "./token_view.js";
import { TreeView } from "./tree_view.js";

/** @typedef {import("./branches.js").Branch} Branch */

const LINE_CHARS = 96;
const LINE_PX = 20;

export class RolloutPage {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.base = root.dataset.base ?? "";
    this.id = root.dataset.id ?? "";
    this.view = readAddress(location.search);
    /** @type {Branch[]} */
    this.branches = [];
    /** @type {Branch|null} */
    this.branch = null;
    /** @type {number[]} */
    this.path = [];
    this.timeline = /** @type {any} */ (null);
    /** @type {Map<number, number>} */
    this.toolSeconds = new Map();
    this.lag = 0;
    this.newTokens = 0;
    this.scheduled = false;
    this.dirty = this.#clean();
    this.scroller = find("[data-scroller]", root);
    this.panel = find("[data-panel]", root);
    this.inspector = find("[data-inspector]", root);
    this.more = find("[data-more]", root);
  }

  #clean() {
    return { tree: false, header: false, heads: new Set(), streams: new Set(), nodes: new Set(), output: false };
  }

  async start() {
    try {
      await this.#load();
    } catch (error) {
      drawError(this.panel, /** @type {Error} */ (error), () => location.reload());
      return;
    }
    const column = find("[data-column]", this.root);
    const filling = { head: this.#head.bind(this), fill: this.#fill.bind(this), estimate: this.#estimate.bind(this) };
    this.list = new NodeList(this.scroller, column, filling, {
      onFollow: () => this.#followed(), onScroll: (key) => this.#scrolled(key),
    });
    this.list.following = this.view.node === null;
    this.tree = new TreeView(find("[data-tree]", this.root), {
      onBranch: (leaf) => this.chooseBranch(leaf), onNode: (index) => this.select(index, null),
    });
    this.finder = new FindView(find("[data-find-box]", this.root), this.base, (index, text) => this.#found(index, text));
    this.sides = new SidePanels(this);
    this.#bind();
    this.drawTree();
    this.showTab(this.view.tab, false);
    if (this.view.node !== null) this.select(this.view.node, this.view.token, false);
    else drawNothing(this.inspector);
    this.#follow();
    void this.loadTimeline();
  }

  async #load() {
    const at = this.view.node === null ? "" : `?at=${this.view.node}`;
    const snapshot = await getJson(`${this.base}/snapshot${at}`);
    this.state = stateFrom(snapshot);
    const onMessages = (/** @type {number[]} */ indexes) => this.list?.refresh(indexes.map(String), false);
    this.messages = new MessageLoader(this.base, this.state, onMessages);
    this.tokens = new TokenLoader(this.base, (indexes) => this.#tokensCame(indexes));
    document.dispatchEvent(new CustomEvent("gyre:labels", { detail: { labels: this.state.labels, rollout: this.state.rollout } }));
  }

  #follow() {
    const { state } = this;
    this.client ??= new LiveClient(liveUrl(location), { onStatus: () => this.drawLiveness() });
    this.client.subscribe(`rollout:${this.id}`, state.position, {
      onEntries: (entries, lag) => this.#apply(entries, lag),
      onReset: () => void this.reload(),
      onClosed: () => this.drawLiveness(),
    });
    setInterval(() => this.drawLiveness(), 1000);
    this.drawLiveness();
  }

  /** A fresh snapshot, in place: after a reset, a jump, a label, or the end. */
  async reload() {
    const { labels: _ } = this.state;
    await this.#load();
    this.client?.subscribe(`rollout:${this.id}`, this.state.position, this.client.streams.get(`rollout:${this.id}`)?.handlers ?? {});
    this.drawTree();
    this.list.redraw(this.list.topKey());
    void this.loadTimeline();
    this.sides.refresh();
  }

  /** @param {import("./live_client.js").Entry[]} entries @param {number} lag */
  #apply(entries, lag) {
    this.lag = lag;
    const wasLive = this.isLive();
    for (const entry of entries) {
      applyEvent(this.state, entry);
      this.#mark(entry);
    }
    this.schedule();
    if (wasLive && !this.isLive()) setTimeout(() => void this.reload(), 300);
  }

  /** @param {import("./live_client.js").Entry} entry */
  #mark({ kind, data }) {
    const { dirty } = this;
    if (kind === "tokens") {
      if (!this.branches.some((branch) => branch.call === data.call)) dirty.tree = true;
      dirty.streams.add(data.call);
      if (!this.list.following) this.newTokens += data.ids.length;
      dirty.header = true;
    } else if (kind === "node") {
      dirty.tree = dirty.header = true;
      dirty.nodes.add(data.index);
    } else if (kind === "call") {
      dirty.streams.add(data.call);
      dirty.tree = dirty.header = true;
      for (const node of this.state.nodes.values()) if (node.call === data.call) dirty.heads.add(node.index);
      if (data.state !== "open") void this.loadTimeline();
    } else if (kind === "output" || kind === "verifier") dirty.output = true;
    else if (kind === "state") dirty.header = true;
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.#draw();
    });
  }

  #draw() {
    const dirty = this.dirty;
    this.dirty = this.#clean();
    if (dirty.tree) this.drawTree();
    const keys = new Set([...dirty.nodes, ...dirty.heads].map(String));
    if (keys.size) this.list.refresh(keys);
    const live = [...dirty.streams].map((call) => `live:${call}`);
    if (live.length) this.list.refresh(live);
    if (dirty.header) drawHeader(find("[data-header]", this.root), this.state);
    if (dirty.output) this.sides.outputCame();
    this.drawLiveness();
    this.#drawMore();
  }

  drawTree() {
    this.branches = branchesOf(this.state);
    this.branch = chooseBranch(this.branches, this.state, { leaf: this.view.branch, at: this.view.node });
    this.path = this.branch ? pathTo(this.state, this.branch.node) : [];
    const keys = this.path.map(String);
    if (this.branch?.call) keys.push(`live:${this.branch.call}`);
    this.list.setKeys(keys);
    this.tree.draw(this.branches, this.branch);
    this.tree.drawSpark(this.state, this.path, this.reading());
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

  /** The node that is read: chosen, or at the top of the screen. @returns {number|null} */
  reading() {
    if (this.list.following) return null;
    const key = this.view.node !== null ? String(this.view.node) : this.list.topKey();
    return key === null || key.startsWith("live:") ? null : Number(key);
  }

  // ---- sections ----

  /** @param {string} key */
  #head(key) {
    const stream = this.#stream(key);
    if (stream) return streamHead(this.state, stream);
    const node = this.state.nodes.get(Number(key));
    if (!node) return h("header", { class: "node-head" }, "");
    return nodeHead(this.state, node, this.toolSeconds.get(node.index) ?? null, this.view.node === node.index);
  }

  /** @param {string} key */
  #stream(key) {
    return key.startsWith("live:") ? this.state.streams.get(key.slice(5)) : undefined;
  }

  /** @param {string} key @param {HTMLElement} body */
  #fill(key, body) {
    const stream = this.#stream(key);
    if (key.startsWith("live:") && !stream) return true;
    if (stream) {
      if (this.view.tab === "tokens") growTokens(body, stream, this.lens(), this.range());
      else growText(body, stream);
      return true;
    }
    return this.view.tab === "tokens" ? this.#fillTokens(Number(key), body) : this.#fillMessage(Number(key), body);
  }

  /** @param {number} index @param {HTMLElement} body */
  #fillMessage(index, body) {
    const message = this.state.messages.get(index);
    if (!message) return this.#waiting(body, this.messages.errors.get(index), () => this.messages.want(index));
    const parent = this.state.nodes.get(this.state.nodes.get(index)?.parent ?? -1);
    const isOutput = message.role === "tool" || (message.role === "user" && Boolean(parent?.sampled));
    body.replaceChildren(...messageBody(message, (field) => this.messages.whole(index, field), isOutput));
    return true;
  }

  /** @param {number} index @param {HTMLElement} body */
  #fillTokens(index, body) {
    const pages = this.tokens.get(index);
    if (!pages) return this.#waiting(body, this.tokens.errors.get(index), () => this.tokens.more(index));
    drawTokens(body, pages, this.lens(), this.range(), () => this.tokens.more(index));
    this.#markToken(index, body);
    return true;
  }

  /** @param {HTMLElement} body @param {string|undefined} error @param {() => void} ask */
  #waiting(body, error, ask) {
    if (error) body.replaceChildren(h("div", { class: "notice notice-bad" }, `${error} `, h("button", { type: "button", class: "link-button", onclick: ask }, "Try again")));
    else {
      if (!body.firstChild) body.append(h("div", { class: "skeleton w-70" }));
      ask();
    }
    return false;
  }

  /** @param {string} key */
  #estimate(key) {
    const tokens = this.state.nodes.get(Number(key))?.num_tokens ?? 20;
    const lines = Math.ceil((tokens * 4) / LINE_CHARS);
    return LINE_PX * (this.view.tab === "tokens" ? Math.min(lines * 1.3, 900) : Math.min(lines, 22)) + 8;
  }

  lens() {
    return lensOf(this.view.lens);
  }

  /** @returns {[number, number]} */
  range() {
    const spans = [...this.state.nodes.values()].flatMap((node) => node.version_spans.map((span) => span[2]));
    for (const stream of this.state.streams.values()) for (const version of stream.versions) if (version !== null) spans.push(version);
    return rangeOf(this.lens(), spans.length > 50_000 ? spans.slice(-50_000) : spans);
  }

  // ---- what people do ----

  #bind() {
    bindKeys(this);
    this.more.addEventListener("click", () => this.list.setFollowing(true));
    for (const button of this.root.querySelectorAll("[data-tab]")) {
      button.addEventListener("click", () => this.showTab(/** @type {HTMLElement} */ (button).dataset.tab ?? ""));
    }
    const column = find("[data-column]", this.root);
    column.addEventListener("mouseover", (event) => this.#pointed(event, false));
    column.addEventListener("click", (event) => this.#pointed(event, true));
    globalThis.addEventListener("popstate", () => {
      this.view = readAddress(location.search);
      this.drawTree();
      this.showTab(this.view.tab, false);
      if (this.view.node !== null) this.select(this.view.node, this.view.token, false);
    });
    document.addEventListener("gyre:labelled", () => void this.reload());
  }

  /** @param {string} tab @param {boolean} [push] */
  showTab(tab, push = true) {
    if (!TABS.includes(tab)) return;
    const anchor = this.list.topKey();
    const changed = this.view.tab !== tab;
    this.view.tab = tab;
    for (const button of this.root.querySelectorAll("[data-tab]")) {
      button.setAttribute("aria-selected", String(/** @type {HTMLElement} */ (button).dataset.tab === tab));
    }
    this.scroller.hidden = this.isSide();
    this.panel.hidden = !this.isSide();
    find("[data-lens-bar]", this.root).hidden = tab !== "tokens";
    this.#drawLens();
    if (this.isSide()) void this.sides.show(tab);
    else if (changed || !push) this.list.redraw(this.view.node !== null && !this.list.following ? String(this.view.node) : anchor);
    this.#drawMore();
    if (push) this.#address(true);
  }

  /** @param {string} key */
  setLens(key) {
    this.view.lens = key;
    if (this.view.tab !== "tokens") this.showTab("tokens", false);
    else this.list.redraw(this.list.topKey());
    this.#drawLens();
    this.#address(true);
  }

  cycleLens() {
    this.setLens(this.view.tab === "tokens" ? nextLens(this.view.lens).key : this.view.lens);
  }

  #drawLens() {
    if (this.view.tab !== "tokens") return;
    drawLensSwitch(find("[data-lenses]", this.root), this.lens(), (key) => this.setLens(key));
    drawLegend(find("[data-legend]", this.root), this.lens(), this.range());
  }

  /** @param {string} leaf */
  chooseBranch(leaf) {
    this.view.branch = leaf.startsWith("live:") ? null : leaf;
    this.view.node = this.view.token = null;
    this.drawTree();
    this.#address(true);
  }

  /** @param {number} by */
  stepBranch(by) {
    const at = this.branches.findIndex((branch) => branch === this.branch);
    const next = this.branches[at + by];
    if (next) this.chooseBranch(next.leaf);
  }

  /**
   * Goes to a node (and a token of it) and shows it in the inspector.
   * @param {number} index
   * @param {number|null} token
   * @param {boolean} [push]
   */
  select(index, token, push = true) {
    const node = this.state.nodes.get(index);
    if (!node) return;
    const before = this.view.node;
    this.view.node = index;
    this.view.token = token;
    if (!this.path.includes(index)) this.drawTree();
    if (this.isSide()) this.showTab("conversation", false);
    this.list.scrollTo(String(index));
    this.list.refresh([before, index].filter((one) => one !== null).map(String));
    this.tree.drawSpark(this.state, this.path, index);
    if (token === null) this.inspectNode(index);
    else this.inspectToken(index, token);
    if (push) this.#address(false);
  }

  /** By turns (sampled nodes), or by every node. @param {number} by @param {boolean} [everyNode] */
  stepNode(by, everyNode = false) {
    const stops = everyNode ? this.path : this.path.filter((index) => this.state.nodes.get(index)?.sampled);
    if (!stops.length) return;
    const here = this.reading();
    const at = here === null ? this.path.length : this.path.indexOf(here);
    const later = stops.filter((index) => this.path.indexOf(index) > at);
    const earlier = stops.filter((index) => this.path.indexOf(index) < at);
    const next = by > 0 ? later[0] : earlier[earlier.length - 1];
    if (next !== undefined) this.select(next, null);
    else if (by > 0) this.list.setFollowing(true);
  }

  /** @param {number} by */
  stepToken(by) {
    const index = this.view.node ?? this.path[this.path.length - 1];
    const node = index === undefined ? undefined : this.state.nodes.get(index);
    if (!node || this.view.tab !== "tokens") return;
    const next = (this.view.token ?? (by > 0 ? -1 : node.num_tokens)) + by;
    const at = this.path.indexOf(index);
    if (next >= 0 && next < node.num_tokens) this.#chooseToken(index, next);
    else if (next < 0 && at > 0) this.#chooseToken(this.path[at - 1], (this.state.nodes.get(this.path[at - 1])?.num_tokens ?? 1) - 1);
    else if (next >= node.num_tokens && at + 1 < this.path.length) this.#chooseToken(this.path[at + 1], 0);
  }

  /** @param {number} index @param {number} token */
  #chooseToken(index, token) {
    const other = this.view.node !== index;
    this.view.node = index;
    this.view.token = token;
    this.list.setFollowing(false);
    const body = this.list.bodyOf(String(index));
    if (other && !body?.querySelector(`[data-i="${token}"]`)) this.list.scrollTo(String(index), "center");
    if (body) this.#markToken(index, body)?.scrollIntoView({ block: "nearest" });
    this.inspectToken(index, token);
    this.#address(false);
  }

  /** @param {number} index @param {HTMLElement} body */
  #markToken(index, body) {
    for (const marked of this.root.querySelectorAll(".t.chosen")) if (index === this.view.node || body.contains(marked)) marked.classList.remove("chosen");
    if (index !== this.view.node || this.view.token === null) return null;
    const span = body.querySelector(`[data-i="${this.view.token}"]`);
    span?.classList.add("chosen");
    return span;
  }

  /** @param {Event} event @param {boolean} isClick */
  #pointed(event, isClick) {
    const target = /** @type {HTMLElement} */ (event.target);
    const key = /** @type {HTMLElement|null} */ (target.closest(".node"))?.dataset.key ?? "";
    const id = target.closest("[data-node]");
    if (isClick && id) {
      event.preventDefault();
      this.select(Number(/** @type {HTMLElement} */ (id).dataset.node), null);
      return;
    }
    const span = /** @type {HTMLElement|null} */ (target.closest(".t"));
    if (!span) return;
    const position = Number(span.dataset.i);
    if (key.startsWith("live:")) this.inspectStream(key, position);
    else if (isClick) this.#chooseToken(Number(key), position);
    else if (this.view.token === null) this.inspectToken(Number(key), position);
  }

  /** @param {number} index */
  inspectNode(index) {
    const node = this.state.nodes.get(index);
    if (!node) return;
    const call = node.call ? this.state.calls.get(node.call) : null;
    drawNode(this.inspector, node, call, { onRequest: (number) => void this.sides.showRequest(number) });
  }

  /** @param {number} index @param {number} position */
  inspectToken(index, position) {
    const page = this.tokens.pageOf(index, position);
    if (!page) {
      this.tokens.get(index);
      return;
    }
    const about = { special: page.special.includes(position), maskRecorded: page.mask_recorded, provisional: false };
    drawToken(this.inspector, this.state.nodes.get(index) ?? null, position, factsOf(page, position), about);
  }

  /** @param {string} key @param {number} position */
  inspectStream(key, position) {
    const stream = this.#stream(key);
    if (stream) drawToken(this.inspector, null, position, factsOf(streamColumns(stream), position), { special: false, maskRecorded: false, provisional: true });
  }

  /** @param {number[]} indexes */
  #tokensCame(indexes) {
    this.list.refresh(indexes.map(String), false);
    if (this.view.node !== null && this.view.token !== null && indexes.includes(this.view.node)) {
      this.inspectToken(this.view.node, this.view.token);
      this.list.bodyOf(String(this.view.node))?.querySelector(".t.chosen")?.scrollIntoView({ block: "center" });
    }
  }

  /** @param {number} index @param {string} text */
  #found(index, text) {
    this.view.branch = null;
    this.select(index, null);
    clearHighlight();
    setTimeout(() => {
      const body = this.list.bodyOf(String(index));
      if (body) highlight(body, text);
    }, 80);
  }

  escape() {
    if (this.view.node === null && this.view.token === null) return;
    const node = this.view.token === null ? null : this.view.node;
    for (const marked of this.root.querySelectorAll(".t.chosen")) marked.classList.remove("chosen");
    const before = this.view.node;
    this.view.token = null;
    this.view.node = node;
    if (node === null) drawNothing(this.inspector);
    else this.inspectNode(node);
    if (before !== null) this.list.refresh([String(before)]);
    this.#address(false);
  }

  #followed() {
    if (this.list.following) {
      this.newTokens = 0;
      if (this.view.token === null) this.view.node = null;
    }
    this.#drawMore();
    this.tree?.drawSpark(this.state, this.path, this.reading());
    this.#address(false);
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

  drawLiveness() {
    if (!this.client) return;
    const isOver = !this.isLive() && this.client.status.state !== "ended";
    drawLiveness(find("[data-liveness]", this.root), this.client.status, { lag: this.lag, isOver });
  }

  async loadTimeline() {
    if (this.timelineBusy) return;
    this.timelineBusy = true;
    try {
      this.timeline = await getJson(`${this.base}/timeline`);
      this.#readToolTimes();
      const started = this.timeline.rollout.started_at;
      const end = this.timeline.rollout.ended_at ?? Date.now();
      find("[data-elapsed]", this.root).textContent = started ? duration((end - started) / 1000) : "";
    } catch {
      // Only durations of tools are missing then; the next call's end asks again.
    }
    this.timelineBusy = false;
  }

  /** A tool's time is what passed between an answer and the next call that continues it. */
  #readToolTimes() {
    const ends = new Map();
    const fresh = [];
    for (const call of this.timeline.calls) {
      if (call.answer_node !== null && call.duration_s !== null) ends.set(call.answer_node, call.started_at + 1000 * call.duration_s);
    }
    for (const call of this.timeline.calls) {
      const node = this.state.nodes.get(call.prompt_node);
      const end = node && node.parent !== null ? ends.get(node.parent) : undefined;
      if (!node || end === undefined || this.toolSeconds.has(node.index)) continue;
      this.toolSeconds.set(node.index, Math.max(0, (call.started_at - end) / 1000));
      fresh.push(String(node.index));
    }
    this.list.refresh(fresh);
  }

  /** @param {boolean} push */
  #address(push) {
    const address = location.pathname + writeAddress(this.view);
    if (address === location.pathname + location.search) return;
    if (push) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
}

const root = document.querySelector("[data-rollout-page]");
if (root instanceof HTMLElement) void new RolloutPage(root).start();
