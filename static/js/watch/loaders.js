// @ts-check
/**
 * Windows of a rollout that are not on the page yet: messages by node, tokens by node and page.
 *
 * Holds: a window is asked for once at a time; failures are kept and said where the content would be.
 */

import { getJson } from "./dom.js";
import { addMessages } from "./rollout_data.js";

/** @typedef {import("./token_view.js").Columns} Columns */

const WINDOW = 40;
const MAX_TOKEN_NODES = 400;

export class MessageLoader {
  /**
   * @param {string} base
   * @param {import("./rollout_data.js").State} state
   * @param {(indexes: number[]) => void} onLoaded
   */
  constructor(base, state, onLoaded) {
    this.base = base;
    this.state = state;
    this.onLoaded = onLoaded;
    /** @type {Set<number>} */
    this.inFlight = new Set();
    /** @type {Map<number, string>} */
    this.errors = new Map();
  }

  /** @param {number} index */
  want(index) {
    const window = Math.floor(index / WINDOW);
    if (this.inFlight.has(window)) return;
    this.inFlight.add(window);
    void this.#load(window);
  }

  /** @param {number} window */
  async #load(window) {
    const first = window * WINDOW;
    const indexes = Array.from({ length: WINDOW }, (_, i) => first + i);
    try {
      const { messages } = await getJson(`${this.base}/nodes?from=${first}&count=${WINDOW}`);
      addMessages(this.state, messages);
      for (const index of indexes) this.errors.delete(index);
    } catch (error) {
      for (const index of indexes) this.errors.set(index, String(error));
    }
    this.inFlight.delete(window);
    this.onLoaded(indexes);
  }

  /** The whole text of one field. @param {number} index @param {string} field */
  async whole(index, field) {
    const { message } = await getJson(`${this.base}/nodes/${index}`);
    this.state.messages.set(index, message);
    return String(message[field] ?? "");
  }
}

export class TokenLoader {
  /**
   * @param {string} base
   * @param {(indexes: number[]) => void} onLoaded
   */
  constructor(base, onLoaded) {
    this.base = base;
    this.onLoaded = onLoaded;
    /** @type {Map<number, Columns[]>} */
    this.pages = new Map();
    /** @type {Set<number>} */
    this.inFlight = new Set();
    /** @type {Map<number, string>} */
    this.errors = new Map();
  }

  /** @param {number} index @returns {Columns[]|null} null: asked for, comes later */
  get(index) {
    const pages = this.pages.get(index);
    if (!pages) this.more(index);
    return pages ?? null;
  }

  /** The page of this node that holds a position. @param {number} index @param {number} position */
  pageOf(index, position) {
    return this.pages.get(index)?.find((page) => position >= page.start && position < page.start + page.ids.length) ?? null;
  }

  /** @param {number} index */
  more(index) {
    if (!this.inFlight.has(index)) {
      this.inFlight.add(index);
      void this.#load(index);
    }
  }

  clear() {
    this.pages.clear();
  }

  /** @param {number} index */
  async #load(index) {
    const have = this.pages.get(index) ?? [];
    const last = have[have.length - 1];
    const from = last ? last.start + last.ids.length : 0;
    try {
      const page = await getJson(`${this.base}/nodes/${index}/tokens?from=${from}`);
      if (this.pages.size >= MAX_TOKEN_NODES) this.pages.delete(/** @type {number} */ (this.pages.keys().next().value));
      this.pages.set(index, [...have, page]);
      this.errors.delete(index);
    } catch (error) {
      this.errors.set(index, String(error));
    }
    this.inFlight.delete(index);
    this.onLoaded([index]);
  }
}
