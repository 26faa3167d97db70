// @ts-check
/**
 * Where people are: the chosen node and token, moving by turn and by token, and the inspector that tells about them.
 *
 * Holds: the chosen place is in the address (`?at=n417.1203`); looking never moves the page, choosing does.
 */

import { postJson, toast } from "../base.js";
import { drawNode, drawNothing, drawToken } from "./inspector_view.js";
import { factsOf, streamColumns } from "./token_view.js";

export class Selection {
  /** @param {import("./rollout_page.js").RolloutPage} page @param {HTMLElement} inspector */
  constructor(page, inspector) {
    this.page = page;
    this.inspector = inspector;
  }

  /** The node that is read: chosen, or at the top of the screen; null while following. @returns {number|null} */
  reading() {
    const { list, view } = this.page;
    if (list.following) return null;
    const key = view.node !== null ? String(view.node) : list.topKey();
    return key === null || key.startsWith("live:") ? null : Number(key);
  }

  /**
   * Goes to a node (and a token of it).
   * @param {number} index
   * @param {number|null} token
   * @param {boolean} [push]
   */
  select(index, token, push = true) {
    const { page } = this;
    if (!page.state.nodes.has(index)) return;
    const before = page.view.node;
    page.view.node = index;
    page.view.token = token;
    if (!page.path.includes(index)) page.drawTree();
    if (page.isSide()) page.showTab("conversation", false);
    page.list.scrollTo(String(index));
    page.list.refresh([before, index].filter((one) => one !== null).map(String));
    page.tree.drawSpark(page.state, page.path, index);
    if (token === null) this.inspectNode(index);
    else this.inspectToken(index, token);
    if (push) page.writeAddress(false);
  }

  /** By turns (sampled nodes), or by every node. @param {number} by @param {boolean} [everyNode] */
  stepNode(by, everyNode = false) {
    const { path, state, list } = this.page;
    const here = this.reading();
    const at = here === null ? path.length : path.indexOf(here);
    const isStop = (/** @type {number} */ index) => everyNode || Boolean(state.nodes.get(index)?.sampled);
    const next = by > 0 ? path.slice(at + 1).find(isStop) : path.slice(0, at).reverse().find(isStop);
    if (next !== undefined) this.select(next, null);
    else if (by > 0) list.setFollowing(true);
  }

  /** To the next or previous token, over the borders of nodes. @param {number} by */
  stepToken(by) {
    const { path, state, view } = this.page;
    const index = view.node ?? path[path.length - 1];
    const size = sizeOf(state, index);
    if (view.tab !== "tokens" || size === 0) return;
    const next = (view.token ?? (by > 0 ? -1 : size)) + by;
    const neighbour = path[path.indexOf(index) + by];
    if (next >= 0 && next < size) this.chooseToken(index, next);
    else if (neighbour !== undefined) this.chooseToken(neighbour, by > 0 ? 0 : sizeOf(state, neighbour) - 1);
  }

  /** @param {number} index @param {number} token */
  chooseToken(index, token) {
    const { list, view } = this.page;
    const isOther = view.node !== index;
    view.node = index;
    view.token = token;
    list.setFollowing(false);
    const body = list.bodyOf(String(index));
    if (isOther && !body?.querySelector(`[data-i="${token}"]`)) list.scrollTo(String(index), "center");
    if (body) this.mark(index, body)?.scrollIntoView({ block: "nearest" });
    this.inspectToken(index, token);
    this.page.writeAddress(false);
  }

  /** @param {number} index @param {HTMLElement} body */
  mark(index, body) {
    const { view, root } = this.page;
    for (const marked of root.querySelectorAll(".t.chosen")) {
      if (index === view.node || body.contains(marked)) marked.classList.remove("chosen");
    }
    if (index !== view.node || view.token === null) return null;
    const span = body.querySelector(`[data-i="${view.token}"]`);
    span?.classList.add("chosen");
    return span;
  }

  /** The mouse over the record, or a click on it. @param {Event} event @param {boolean} isClick */
  pointed(event, isClick) {
    const target = /** @type {HTMLElement} */ (event.target);
    const key = /** @type {HTMLElement|null} */ (target.closest(".node"))?.dataset.key ?? "";
    const id = /** @type {HTMLElement|null} */ (target.closest("[data-node]"));
    const span = /** @type {HTMLElement|null} */ (target.closest(".t"));
    if (isClick && id) {
      event.preventDefault();
      this.select(Number(id.dataset.node), null);
    } else if (span) {
      const position = Number(span.dataset.i);
      if (key.startsWith("live:")) this.inspectStream(key, position);
      else if (isClick) this.chooseToken(Number(key), position);
      else if (this.page.view.token === null) this.inspectToken(Number(key), position);
    }
  }

  /** @param {number} index */
  inspectNode(index) {
    const { state, sides } = this.page;
    const node = state.nodes.get(index);
    if (!node) return;
    const call = node.call ? state.calls.get(node.call) : null;
    const onFork = this.page.root.dataset.fork ? (/** @type {number} */ at, /** @type {number} */ times) => void this.fork(at, times) : null;
    drawNode(this.inspector, node, call, { onRequest: (number) => void sides.showRequest(number), onFork });
  }

  /** Start rollouts again from a call of this one. @param {number} index @param {number} times */
  async fork(index, times) {
    const { status, body } = await postJson(this.page.root.dataset.fork ?? "", { call_index: index, count: times });
    if (status !== 201) {
      toast(body?.error ?? "They were not started: ask again.", "error");
      return;
    }
    toast(`Started ${body.forks.length} from call ${index}. The first is opened.`);
    location.assign(body.forks[0]);
  }

  /** @param {number} index @param {number} position */
  inspectToken(index, position) {
    const { tokens, state } = this.page;
    const columns = tokens.pageOf(index, position);
    if (!columns) {
      tokens.get(index);
      return;
    }
    const about = { special: columns.special.includes(position), maskRecorded: columns.mask_recorded };
    drawToken(this.inspector, state.nodes.get(index) ?? null, position, factsOf(columns, position), about);
  }

  /** @param {string} key @param {number} position */
  inspectStream(key, position) {
    const stream = this.page.sections.stream(key);
    if (stream) drawToken(this.inspector, null, position, factsOf(streamColumns(stream), position), { special: false, maskRecorded: false });
  }

  /** Tokens of these nodes came from the server. @param {number[]} indexes */
  tokensCame(indexes) {
    const { list, view } = this.page;
    list.refresh(indexes.map(String), false);
    if (view.node === null || view.token === null || !indexes.includes(view.node)) return;
    this.inspectToken(view.node, view.token);
    list.bodyOf(String(view.node))?.querySelector(".t.chosen")?.scrollIntoView({ block: "center" });
  }

  /** One step out: from the token to its node, from the node to nothing. */
  escape() {
    const { view, list, root } = this.page;
    const before = view.node;
    if (before === null) return;
    if (view.token === null) view.node = null;
    view.token = null;
    for (const marked of root.querySelectorAll(".t.chosen")) marked.classList.remove("chosen");
    if (view.node === null) this.inspectNothing();
    else this.inspectNode(view.node);
    list.refresh([String(before)]);
    this.page.writeAddress(false);
  }

  inspectNothing() {
    drawNothing(this.inspector);
  }
}

/** @param {import("./rollout_data.js").State} state @param {number|undefined} index */
function sizeOf(state, index) {
  return index === undefined ? 0 : (state.nodes.get(index)?.num_tokens ?? 0);
}
