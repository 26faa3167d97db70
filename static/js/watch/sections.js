// @ts-check
/**
 * What stands in each section of the record: head and body of a node or of an answer being sampled, in the chosen tab.
 *
 * From:  rollout_page.js (state, view). To: node_list.js, as its `Filling`.
 */

import { growText, messageBody, nodeHead, streamHead } from "./conversation_view.js";
import { h } from "./dom.js";
import { lensOf, rangeOf } from "./lens.js";
import { drawTokens, growTokens } from "./token_view.js";

const LINE_CHARS = 96;
const LINE_PX = 20;

export class Sections {
  /** @param {import("./rollout_page.js").RolloutPage} page */
  constructor(page) {
    this.page = page;
    /** @type {Map<number, number>} seconds that the tool before a node took */
    this.toolSeconds = new Map();
    this.head = this.head.bind(this);
    this.fill = this.fill.bind(this);
    this.estimate = this.estimate.bind(this);
  }

  /** @param {string} key @returns {HTMLElement} */
  head(key) {
    const { state, view } = this.page;
    const stream = this.stream(key);
    if (stream) return streamHead(state, stream);
    const node = state.nodes.get(Number(key));
    if (!node) return h("header", { class: "node-head" }, "");
    return nodeHead(state, node, this.toolSeconds.get(node.index) ?? null, view.node === node.index);
  }

  /** @param {string} key */
  stream(key) {
    return key.startsWith("live:") ? this.page.state.streams.get(key.slice(5)) : undefined;
  }

  /** @param {string} key @param {HTMLElement} body @returns {boolean} */
  fill(key, body) {
    const isTokens = this.page.view.tab === "tokens";
    const stream = this.stream(key);
    if (key.startsWith("live:") && !stream) return true;
    if (!stream) return isTokens ? this.#fillTokens(Number(key), body) : this.#fillMessage(Number(key), body);
    if (isTokens) growTokens(body, stream, this.lens(), this.range());
    else growText(body, stream);
    return true;
  }

  /** @param {number} index @param {HTMLElement} body */
  #fillMessage(index, body) {
    const { state, messages } = this.page;
    const message = state.messages.get(index);
    if (!message) return waiting(body, messages.errors.get(index), () => messages.want(index));
    const parent = state.nodes.get(state.nodes.get(index)?.parent ?? -1);
    const isOutput = message.role === "tool" || (message.role === "user" && Boolean(parent?.sampled));
    body.replaceChildren(...messageBody(message, (field) => messages.whole(index, field), isOutput));
    return true;
  }

  /** @param {number} index @param {HTMLElement} body */
  #fillTokens(index, body) {
    const { tokens } = this.page;
    const pages = tokens.get(index);
    if (!pages) return waiting(body, tokens.errors.get(index), () => tokens.more(index));
    drawTokens(body, pages, this.lens(), this.range(), () => tokens.more(index));
    this.page.selection.mark(index, body);
    return true;
  }

  /** Height in px before it was drawn. @param {string} key */
  estimate(key) {
    const tokens = this.page.state.nodes.get(Number(key))?.num_tokens ?? 20;
    const lines = Math.ceil((tokens * 4) / LINE_CHARS);
    return LINE_PX * (this.page.view.tab === "tokens" ? Math.min(lines * 1.3, 900) : Math.min(lines, 22)) + 8;
  }

  lens() {
    return lensOf(this.page.view.lens);
  }

  /** @returns {[number, number]} */
  range() {
    const { state } = this.page;
    const versions = new Set();
    for (const node of state.nodes.values()) for (const span of node.version_spans) versions.add(span[2]);
    for (const stream of state.streams.values()) for (const version of stream.versions) if (version !== null) versions.add(version);
    return rangeOf(this.lens(), [...versions]);
  }

  /**
   * A tool's time is what passed between an answer and the next call that continues it.
   * @param {any} timeline
   * @returns {string[]} keys whose head changed
   */
  readToolTimes(timeline) {
    const ends = new Map();
    const fresh = [];
    for (const call of timeline.calls) {
      if (call.answer_node !== null && call.duration_s !== null) ends.set(call.answer_node, call.started_at + 1000 * call.duration_s);
    }
    for (const call of timeline.calls) {
      const node = this.page.state.nodes.get(call.prompt_node);
      const end = node && node.parent !== null ? ends.get(node.parent) : undefined;
      if (!node || end === undefined || this.toolSeconds.has(node.index)) continue;
      this.toolSeconds.set(node.index, Math.max(0, (call.started_at - end) / 1000));
      fresh.push(String(node.index));
    }
    return fresh;
  }
}

/** @param {HTMLElement} body @param {string|undefined} error @param {() => void} ask @returns {boolean} */
function waiting(body, error, ask) {
  if (error) {
    body.replaceChildren(h("div", { class: "notice notice-bad" }, `${error} `, h("button", { type: "button", class: "link-button", onclick: ask }, "Try again")));
  } else {
    if (!body.firstChild) body.append(h("div", { class: "skeleton w-70" }));
    ask();
  }
  return false;
}
