// @ts-check
/**
 * The scrolling column of nodes: thousands of sections, of which only those near the screen have content.
 *
 * From:  rollout_page.js gives the keys of the shown branch ("417", "live:<call>") and how to fill one.
 * Holds: what is being read is never moved (a change above it moves the scroll position by as much); it follows growth only while at the bottom;
 *        a section that leaves the neighbourhood keeps its height and gives its content back.
 * Never: knows what a node or a token is.
 */

import { h } from "./dom.js";

/**
 * @typedef {object} Filling
 * @property {(key: string) => HTMLElement} head
 * @property {(key: string, body: HTMLElement) => boolean} fill   false: its data is still on its way
 * @property {(key: string) => number} estimate   height in px before it was ever drawn
 */

const NEAR_PX = 1600;
const AT_BOTTOM_PX = 48;

export class NodeList {
  /**
   * @param {HTMLElement} scroller
   * @param {HTMLElement} column
   * @param {Filling} filling
   * @param {{onFollow?: (following: boolean) => void, onScroll?: (key: string|null) => void}} [hooks]
   */
  constructor(scroller, column, filling, hooks = {}) {
    this.scroller = scroller;
    this.column = column;
    this.filling = filling;
    this.hooks = hooks;
    /** @type {string[]} */
    this.keys = [];
    /** @type {Map<string, {section: HTMLElement, body: HTMLElement, near: boolean, filled: boolean}>} */
    this.sections = new Map();
    this.following = true;
    this.lastTop = 0;
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), {
      root: scroller, rootMargin: `${NEAR_PX}px 0px`,
    });
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.stick()).observe(column);
  }

  /** Shows these sections; what stays in front is left alone. @param {string[]} keys */
  setKeys(keys) {
    let same = 0;
    while (same < keys.length && keys[same] === this.keys[same]) same++;
    for (const key of this.keys.slice(same)) this.#drop(key);
    const fresh = keys.slice(same).map((key) => this.#make(key));
    this.column.append(...fresh);
    this.keys = keys;
    this.stick();
  }

  /** Fills again what is shown of these sections. @param {Iterable<string>} keys @param {boolean} [withHead] */
  refresh(keys, withHead = true) {
    for (const key of keys) {
      const entry = this.sections.get(key);
      if (!entry) continue;
      if (withHead) entry.section.firstElementChild?.replaceWith(this.filling.head(key));
      if (entry.near) this.#fill(key, entry);
    }
    this.stick();
  }

  /** Everything anew (another tab or lens), at the same place. @param {string|null} anchor */
  redraw(anchor) {
    for (const entry of this.sections.values()) {
      entry.filled = false;
      entry.body.replaceChildren();
      entry.body.style.minHeight = "";
    }
    for (const [key, entry] of this.sections) {
      entry.body.style.minHeight = `${this.filling.estimate(key)}px`;
      if (entry.near) this.#fill(key, entry);
    }
    if (this.following) this.stick();
    else if (anchor) this.scrollTo(anchor);
  }

  /** @param {string} key @param {"start"|"center"} [block] */
  scrollTo(key, block = "start") {
    const entry = this.sections.get(key);
    if (!entry) return;
    this.setFollowing(false);
    this.#fill(key, entry);
    entry.section.scrollIntoView({ block, behavior: "instant" });
    requestAnimationFrame(() => entry.section.scrollIntoView({ block, behavior: "instant" }));
  }

  /** @param {boolean} following */
  setFollowing(following) {
    if (this.following !== following) {
      this.following = following;
      this.hooks.onFollow?.(following);
    }
    this.stick();
  }

  stick() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** The section at the top of what is read. @returns {string|null} */
  topKey() {
    const top = this.scroller.getBoundingClientRect().top + 60;
    let low = 0;
    let high = this.keys.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      const box = this.sections.get(this.keys[middle])?.section.getBoundingClientRect();
      if (box && box.top <= top) low = middle;
      else high = middle - 1;
    }
    return this.keys[low] ?? null;
  }

  /** @param {string} key */
  bodyOf(key) {
    return this.sections.get(key)?.body ?? null;
  }

  /** @param {string} key */
  #make(key) {
    const body = h("div", { class: "node-body" });
    body.style.minHeight = `${this.filling.estimate(key)}px`;
    const section = h("section", { class: "node", "data-key": key }, this.filling.head(key), body);
    this.sections.set(key, { section, body, near: false, filled: false });
    this.observer.observe(section);
    return section;
  }

  /** @param {string} key */
  #drop(key) {
    const entry = this.sections.get(key);
    if (!entry) return;
    this.observer.unobserve(entry.section);
    entry.section.remove();
    this.sections.delete(key);
  }

  /** @param {IntersectionObserverEntry[]} changes */
  #seen(changes) {
    for (const change of changes) {
      const key = /** @type {HTMLElement} */ (change.target).dataset.key ?? "";
      const entry = this.sections.get(key);
      if (!entry || entry.near === change.isIntersecting) continue;
      entry.near = change.isIntersecting;
      if (entry.near && !entry.filled) this.#fill(key, entry);
      else if (!entry.near && entry.filled) this.#empty(entry);
    }
  }

  /** @param {string} key @param {{section: HTMLElement, body: HTMLElement, filled: boolean}} entry */
  #fill(key, entry) {
    this.#keepPlace(entry.section, () => {
      entry.filled = this.filling.fill(key, entry.body);
      if (entry.filled) entry.body.style.minHeight = "";
    });
  }

  /** Where `section` lies above the screen, its change of height is made up for. @param {HTMLElement} section @param {() => void} change */
  #keepPlace(section, change) {
    const top = this.scroller.getBoundingClientRect().top;
    const before = section.getBoundingClientRect();
    change();
    if (this.following || before.bottom > top) return;
    this.scroller.scrollTop += section.getBoundingClientRect().height - before.height;
    this.lastTop = this.scroller.scrollTop;
  }

  /** @param {{body: HTMLElement, filled: boolean}} entry */
  #empty(entry) {
    if (entry.body.contains(document.activeElement) || entry.body.querySelector("[data-open]")) return;
    entry.body.style.minHeight = `${entry.body.offsetHeight}px`;
    entry.body.replaceChildren();
    entry.filled = false;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const atBottom = scrollHeight - scrollTop - clientHeight < AT_BOTTOM_PX;
    const movedUp = scrollTop < this.lastTop - 2;
    this.lastTop = scrollTop;
    if (atBottom !== this.following && (atBottom || movedUp)) {
      this.following = atBottom;
      this.hooks.onFollow?.(atBottom);
    }
    this.hooks.onScroll?.(this.following ? null : this.topKey());
  }
}
