// @ts-check
/**
 * Judgements that the server has not acknowledged yet: kept in the browser, sent again until it did.
 *
 * Holds: a judgement leaves the outbox only after the server's answer; its client_key makes a second sending harmless;
 *        a judgement that the server refuses is given back with what is wrong, and not sent again.
 */

/** @typedef {{client_key: string, verdict: string, keep: string, reward: number|null, reason: string, note: string, turns: Record<string, boolean>}} Judgement */
/** @typedef {{url: string, rollout: string, judgement: Judgement}} Item */
/** @typedef {{saved: any, item: Item} | {refused: {field: string, message: string}[], item: Item} | {waiting: number}} Result */

const KEY = "gyre.outbox";

export class Outbox {
  /**
   * @param {Storage} storage
   * @param {(url: string, data: any) => Promise<{status: number, body: any}>} post
   * @param {(result: Result) => void} onResult
   */
  constructor(storage, post, onResult) {
    this.storage = storage;
    this.post = post;
    this.onResult = onResult;
    this.busy = false;
    this.waitMs = 1000;
    /** @type {any} */
    this.timer = null;
  }

  /** @returns {Item[]} */
  items() {
    try {
      return JSON.parse(this.storage.getItem(KEY) ?? "[]");
    } catch {
      return [];
    }
  }

  /** @param {Item} item */
  add(item) {
    const others = this.items().filter((one) => one.judgement.client_key !== item.judgement.client_key);
    this.storage.setItem(KEY, JSON.stringify([...others, item]));
    return this.send();
  }

  /** Sends what is there, in order; stops at the first that cannot reach the server. */
  async send() {
    if (this.busy) return;
    this.busy = true;
    clearTimeout(this.timer);
    for (const item of this.items()) {
      if (!(await this.#sendOne(item))) {
        this.onResult({ waiting: this.items().length });
        this.timer = setTimeout(() => void this.send(), this.waitMs);
        this.waitMs = Math.min(30_000, this.waitMs * 2);
        break;
      }
      this.waitMs = 1000;
    }
    this.busy = false;
  }

  /** @param {Item} item @returns {Promise<boolean>} false: not reached, try again later */
  async #sendOne(item) {
    let answer;
    try {
      answer = await this.post(item.url, item.judgement);
    } catch {
      return false;
    }
    const { status, body } = answer;
    if (status >= 500 || status === 429 || status === 408 || (status === 200 && !body?.label)) return false;
    this.#remove(item);
    if (status === 200) this.onResult({ saved: body.label, item });
    else {
      const message = status === 403 ? "You may not judge: this needs the role reviewer." : `The server answered ${status}.`;
      this.onResult({ refused: body?.errors ?? [{ field: "verdict", message }], item });
    }
    return true;
  }

  /** @param {Item} item */
  #remove(item) {
    const rest = this.items().filter((one) => one.judgement.client_key !== item.judgement.client_key);
    this.storage.setItem(KEY, JSON.stringify(rest));
  }
}

/** A new key, also on plain http where randomUUID is missing. */
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
