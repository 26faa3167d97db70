// @ts-check
/**
 * The one live websocket of this tab, with many subscriptions (protocol: gyre_web/watch/protocol.py).
 *
 * From:  /live. To: the handlers given to `subscribe`.
 * Holds: after any loss of the connection every subscription goes on from the last entry it was given, so nothing
 *        is lost or doubled; reconnects after 1 to 30 s with jitter, at once when the tab becomes visible.
 * Never: knows what an event means.
 */

/** @typedef {[number, number]} Position */
/** @typedef {{epoch: number, n: number, kind: string, data: any}} Entry */
/**
 * @typedef {object} Handlers
 * @property {(entries: Entry[], lag: number) => void} [onEntries]
 * @property {(reason: string, lag: number) => void} [onReset]   load a snapshot, then subscribe again
 * @property {() => void} [onChanged]
 * @property {(code: number, reason: string) => void} [onClosed]
 */
/** @typedef {{state: "connecting"|"live"|"reconnecting"|"ended", retryAt: number|null, reason: string}} Status */

const HANDSHAKE_MS = 10_000;
const SILENCE_MS = 40_000;
const FIRST_BACKOFF_MS = 1_000;
const LAST_BACKOFF_MS = 30_000;
/** Close codes after which trying again is useless. */
const FINAL_CODES = new Map([
  [4001, "signed out"],
  [4003, "not allowed"],
]);

/**
 * Wait before the attempt-th reconnect (0-based): doubling, 50 to 100 % of it at random.
 * @param {number} attempt
 * @param {() => number} random
 */
export function backoffMs(attempt, random = Math.random) {
  const full = Math.min(LAST_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** Math.min(attempt, 10));
  return Math.max(FIRST_BACKOFF_MS, Math.round(full * (0.5 + 0.5 * random())));
}

export class LiveClient {
  /**
   * @param {string} url
   * @param {{socket?: (url: string) => WebSocket, onStatus?: (status: Status) => void}} [options]
   */
  constructor(url, options = {}) {
    this.url = url;
    this.makeSocket = options.socket ?? ((address) => new WebSocket(address));
    this.onStatus = options.onStatus ?? (() => {});
    /** @type {Map<string, {after: Position|null, handlers: Handlers, stopped: boolean}>} */
    this.streams = new Map();
    /** @type {WebSocket|null} */
    this.socket = null;
    this.attempt = 0;
    /** @type {any} */
    this.retryTimer = null;
    /** @type {any} */
    this.watchdog = null;
    /** @type {Status} */
    this.status = { state: "connecting", retryAt: null, reason: "" };
    if (typeof document !== "undefined") {
      document.addEventListener("visibilitychange", () => this.#wake());
      globalThis.addEventListener("online", () => this.#wake());
      globalThis.addEventListener("pagehide", () => this.socket?.close());
    }
  }

  /**
   * @param {string} stream  "rollout:<uuid>" or "attempt:<uuid>"
   * @param {Position|null} after
   * @param {Handlers} handlers
   */
  subscribe(stream, after, handlers) {
    this.streams.set(stream, { after, handlers, stopped: false });
    if (this.socket?.readyState === 1) this.#send({ op: "subscribe", stream, after });
    else if (!this.socket && this.retryTimer === null && this.status.state !== "ended") this.connect();
  }

  /** @param {string} stream */
  unsubscribe(stream) {
    if (this.streams.delete(stream) && this.socket?.readyState === 1) this.#send({ op: "unsubscribe", stream });
  }

  connect() {
    clearTimeout(this.retryTimer);
    this.retryTimer = null;
    const socket = this.makeSocket(this.url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.#setStatus("connecting");
    this.#watch(HANDSHAKE_MS);
    socket.onopen = () => {
      if (this.socket !== socket) return;
      this.#watch(SILENCE_MS);
      for (const [stream, { after, stopped }] of this.streams) {
        if (!stopped) this.#send({ op: "subscribe", stream, after });
      }
    };
    socket.onmessage = (event) => this.socket === socket && this.#receive(event.data);
    socket.onclose = (event) => this.socket === socket && this.#lost(event.code, event.reason);
  }

  /** @param {any} data */
  #receive(data) {
    const text = typeof data === "string" ? data : new TextDecoder().decode(data);
    const message = JSON.parse(text);
    this.attempt = 0;
    this.#watch(SILENCE_MS);
    this.#setStatus("live");
    const subscription = this.streams.get(message.stream);
    if (!subscription) return;
    if (message.op === "events") this.#apply(message, subscription);
    else if (message.op === "changed") subscription.handlers.onChanged?.();
    else if (message.op === "reset") {
      subscription.stopped = true;
      subscription.handlers.onReset?.(message.reason, message.lag);
    } else if (message.op === "closed") {
      subscription.stopped = true;
      subscription.handlers.onClosed?.(message.code, message.reason);
    }
  }

  /**
   * Entries at or before `after` are dropped: a frame sent twice around a reconnect counts once.
   * @param {any} message
   * @param {{after: Position|null, handlers: Handlers}} subscription
   */
  #apply(message, subscription) {
    const fresh = [];
    for (const [n, kind, data] of message.entries) {
      if (isAfter([message.epoch, n], subscription.after)) {
        subscription.after = [message.epoch, n];
        fresh.push({ epoch: message.epoch, n, kind, data });
      }
    }
    if (fresh.length) subscription.handlers.onEntries?.(fresh, message.lag);
    const [last] = message.entries[message.entries.length - 1];
    this.#send({ op: "ack", stream: message.stream, position: [message.epoch, last] });
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #lost(code, reason) {
    clearTimeout(this.watchdog);
    this.socket = null;
    const final = FINAL_CODES.get(code);
    if (final) {
      this.#setStatus("ended", null, final);
      return;
    }
    const wait = backoffMs(this.attempt++);
    this.#setStatus("reconnecting", Date.now() + wait, reason);
    this.retryTimer = setTimeout(() => this.connect(), wait);
  }

  /** A socket that says nothing for so long is dead, whatever the browser thinks. @param {number} ms */
  #watch(ms) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => {
      const socket = this.socket;
      this.#lost(0, "no answer");
      socket?.close();
    }, ms);
  }

  #wake() {
    if (document.visibilityState === "hidden" || this.retryTimer === null) return;
    this.attempt = 0;
    this.connect();
  }

  /** @param {object} request */
  #send(request) {
    this.socket?.send(JSON.stringify(request));
  }

  /**
   * @param {Status["state"]} state
   * @param {number|null} retryAt
   * @param {string} reason
   */
  #setStatus(state, retryAt = null, reason = "") {
    if (this.status.state === state && this.status.retryAt === retryAt) return;
    this.status = { state, retryAt, reason };
    this.onStatus(this.status);
  }
}

/**
 * @param {Position} position
 * @param {Position|null} after
 */
export function isAfter(position, after) {
  if (!after) return true;
  return position[0] > after[0] || (position[0] === after[0] && position[1] > after[1]);
}

/** Address of /live on this site. @param {Location} location */
export function liveUrl(location) {
  return `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}/live`;
}
