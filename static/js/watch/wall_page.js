// @ts-check
/**
 * The wall: draws the cells, four times a second, and keeps them live.
 *
 * From:  /runs/<id>/wall/data (which rollouts), /live (what they sample). Holds: a cell is redrawn only when it changed.
 */

import { find, getJson, h } from "./dom.js";
import { count, duration, versionName } from "./format.js";
import { drawLiveness } from "./header_view.js";
import { LiveClient, liveUrl } from "./live_client.js";
import { ansiPieces } from "./ansi.js";
import { applyToCell, mergeWall, moodOf, speedOf } from "./wall_data.js";

/** @typedef {import("./wall_data.js").Cell} Cell */

const DRAW_MS = 250;
const LIST_MS = 5_000;
const WORDS = { live: "", quiet: "quiet", stuck: "stuck?", held: "held", ended: "ended" };

class Wall {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.grid = find("[data-wall-cells]", root);
    /** @type {Map<string, Cell>} */
    this.cells = new Map();
    /** @type {Map<string, {link: HTMLElement, drawn: string}>} */
    this.views = new Map();
    this.total = 0;
    this.busy = false;
    this.client = new LiveClient(liveUrl(location), { onStatus: () => this.drawLiveness() });
    this.attempts = new Set();
  }

  async start() {
    await this.list();
    setInterval(() => this.draw(), DRAW_MS);
    setInterval(() => void this.list(), LIST_MS);
  }

  /** Which rollouts live: at a bell of the run, and every few seconds in case a bell was lost. */
  async list() {
    if (this.busy) return;
    this.busy = true;
    try {
      const data = await getJson(this.root.dataset.url ?? "");
      this.total = data.total;
      this.engines = data.engines ?? {};
      for (const attempt of data.attempts) this.#listen(attempt);
      const { added, removed } = mergeWall(this.cells, data.cells, Date.now());
      for (const cell of added) this.#follow(cell, cell.about.position);
      for (const id of removed) this.#leave(id);
      this.draw();
    } catch (error) {
      find("[data-wall-sum]", this.root).textContent = String(error);
    }
    this.busy = false;
  }

  /** @param {string} attempt */
  #listen(attempt) {
    if (this.attempts.has(attempt)) return;
    this.attempts.add(attempt);
    this.client.subscribe(`attempt:${attempt}`, null, { onChanged: () => void this.list() });
  }

  /** @param {Cell} cell @param {[number, number]|null} position */
  #follow(cell, position) {
    this.client.subscribe(`rollout:${cell.id}`, position, {
      onEntries: (entries) => {
        for (const entry of entries) applyToCell(cell, entry, Date.now());
      },
      onReset: () => {
        this.#leave(cell.id);
        this.cells.delete(cell.id);
        void this.list();
      },
    });
  }

  /** @param {string} id */
  #leave(id) {
    this.client.unsubscribe(`rollout:${id}`);
    this.views.get(id)?.link.remove();
    this.views.delete(id);
  }

  draw() {
    const now = Date.now();
    let speed = 0;
    let stuck = 0;
    for (const cell of this.cells.values()) {
      const mood = moodOf(cell, now);
      const own = speedOf(cell, now);
      speed += own;
      stuck += mood === "stuck" ? 1 : 0;
      this.#drawCell(cell, mood, own, now);
    }
    find("[data-wall-empty]", this.root).hidden = this.cells.size > 0;
    this.grid.hidden = this.cells.size === 0;
    const parts = [`${count(this.total)} live`, `${speed.toFixed(0)} tokens/s`];
    if (stuck) parts.push(`${count(stuck)} silent for a minute`);
    if (this.total > this.cells.size) parts.push(`the ${count(this.cells.size)} oldest are shown`);
    find("[data-wall-sum]", this.root).replaceChildren(...parts.map((text) => h("span", null, text)));
    this.drawLiveness();
  }

  drawLiveness() {
    drawLiveness(find("[data-liveness]", this.root), this.client.status, { lag: 0, isOver: false });
  }

  /** @param {Cell} cell @param {keyof WORDS} mood @param {number} speed @param {number} now */
  #drawCell(cell, mood, speed, now) {
    let view = this.views.get(cell.id);
    if (!view) {
      view = { link: h("a", { class: "wall-cell", href: `/rollouts/${cell.id}` }), drawn: "" };
      this.views.set(cell.id, view);
      this.grid.append(view.link);
    }
    const started = Date.parse(cell.about.started_at ?? cell.about.created_at);
    const elapsed = duration(Math.floor(((cell.endedAt ?? now) - started) / 1000));
    const silent = mood === "quiet" || mood === "stuck" ? duration(Math.floor((now - cell.activeAt) / 1000)) : "";
    const word = mood === "live" ? cell.state : mood === "ended" ? cell.outcome || "ended" : `${WORDS[mood]} ${silent}`;
    const engine = cell.engines.map((id) => this.engines?.[id] ?? id).at(-1) ?? "";
    const drawn = [word, elapsed, Math.round(speed), cell.tokens, engine, cell.role, cell.version, cell.tail.slice(-40)].join("|");
    if (drawn === view.drawn) return;
    view.drawn = drawn;
    view.link.className = `wall-cell is-${mood}`;
    view.link.replaceChildren(
      h("span", { class: "wall-head" }, h("span", { class: "wall-task", title: cell.about.task }, cell.about.task), h("span", { class: `wall-state${mood === "stuck" ? " is-stuck-word" : ""}` }, word.replaceAll("_", " "))),
      h("span", { class: "wall-tail" }, cell.tail ? h("span", null, tailPieces(cell.tail)) : h("span", { class: "faint" }, cell.state === "queued" ? "waits for a worker" : "nothing sampled yet")),
      h("span", { class: "wall-figures" }, h("span", { class: speed >= 1 ? "wall-speed" : "" }, `${speed.toFixed(0)} tok/s`), h("span", null, `${count(cell.tokens)} tok`), h("span", null, elapsed), h("span", { title: "Role, version, engine" }, [cell.role === "main" ? "" : cell.role, cell.version === null ? "" : versionName(cell.version), engine].filter(Boolean).join(" · "))),
    );
  }
}

/** @param {string} tail */
function tailPieces(tail) {
  return ansiPieces(tail.replace(/\n{3,}/g, "\n\n")).map((piece) => (piece.classes ? h("span", { class: piece.classes }, piece.text) : piece.text));
}

const root = document.querySelector("[data-wall]");
if (root instanceof HTMLElement) void new Wall(root).start();
