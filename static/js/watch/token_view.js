// @ts-check
/**
 * A node as its tokens: one span a token, coloured by the lens, masks and special tokens by shape.
 *
 * From:  /rollouts/<id>/nodes/<n>/tokens (columns), or an answer that is being sampled.
 * Holds: a token's facts are those of the record; what was not recorded has no colour.
 */

import { h } from "./dom.js";
import { count, versionName } from "./format.js";
import { binOf } from "./lens.js";

/** @typedef {import("./lens.js").Lens} Lens */
/** @typedef {import("./lens.js").TokenFacts} TokenFacts */
/**
 * @typedef {object} Columns
 * @property {number} index
 * @property {number} start
 * @property {number} total
 * @property {number} opener_length
 * @property {boolean} sampled
 * @property {number[]} ids
 * @property {string[]} texts
 * @property {number[]} special
 * @property {(number|null)[]} logprobs
 * @property {(number|null)[]} versions
 * @property {number[]} mask
 * @property {boolean} mask_recorded
 * @property {(number|null)[]} trainer_logprobs
 * @property {number|null} advantage
 */

/** @param {Columns} columns @param {number} position @returns {TokenFacts} */
export function factsOf(columns, position) {
  const i = position - columns.start;
  return {
    id: columns.ids[i], text: columns.texts[i], logprob: columns.logprobs[i], version: columns.versions[i],
    mask: columns.mask[i], trainer: columns.trainer_logprobs[i], advantage: columns.advantage,
  };
}

/** The columns of an answer being sampled. @param {import("./rollout_data.js").Stream} stream @returns {Columns} */
export function streamColumns(stream) {
  return {
    index: -1, start: 0, total: stream.ids.length, opener_length: 0, sampled: true, ids: stream.ids, texts: stream.texts,
    special: [], logprobs: stream.logprobs, versions: stream.versions, mask: stream.ids.map(() => 1), mask_recorded: false,
    trainer_logprobs: stream.ids.map(() => null), advantage: null,
  };
}

/**
 * @param {Columns} columns
 * @param {Lens} lens
 * @param {[number, number]} range
 * @param {number} [from]  first position to draw
 * @returns {DocumentFragment}
 */
export function tokenSpans(columns, lens, range, from = columns.start) {
  const fragment = document.createDocumentFragment();
  const special = new Set(columns.special);
  const end = columns.start + columns.ids.length;
  for (let position = from; position < end; position++) {
    fragment.append(tokenSpan(columns, position, lens, range, special.has(position)));
  }
  return fragment;
}

/**
 * @param {Columns} columns
 * @param {number} position
 * @param {Lens} lens
 * @param {[number, number]} range
 * @param {boolean} isSpecial
 */
function tokenSpan(columns, position, lens, range, isSpecial) {
  const facts = factsOf(columns, position);
  const span = document.createElement("span");
  let name = "t";
  const bin = lens.scale === "shape" ? null : binOf(lens, range, lens.value(facts));
  if (bin !== null) name += ` ${lens.scale}-${bin}`;
  if (!facts.mask) name += " m0";
  if (isSpecial) name += " special";
  if (facts.text === "") name += " part";
  const before = position > columns.start ? columns.versions[position - columns.start - 1] : null;
  if (before !== null && facts.version !== null && before !== facts.version) {
    name += " version-border";
    span.dataset.version = versionName(facts.version);
  }
  span.className = name;
  span.dataset.i = String(position);
  span.textContent = isSpecial || facts.text !== "" ? visible(facts.text) : "·";
  return span;
}

/** Newlines keep their effect and are seen. @param {string} text */
function visible(text) {
  return text.replaceAll("\n", "↵\n").replace(/\t/g, "→\t").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, caret);
}

/** ^[ for escape, ^@ for NUL. @param {string} sign */
function caret(sign) {
  return `^${String.fromCharCode(sign.charCodeAt(0) ^ 0x40)}`;
}

/**
 * @param {HTMLElement} body
 * @param {Columns[]} pages   in order, the first begins at 0
 * @param {Lens} lens
 * @param {[number, number]} range
 * @param {() => void} loadMore
 */
export function drawTokens(body, pages, lens, range, loadMore) {
  const box = h("div", { class: `tokens lens-${lens.key}` });
  for (const page of pages) box.append(tokenSpans(page, lens, range));
  const last = pages[pages.length - 1];
  const shown = last.start + last.ids.length;
  body.replaceChildren(box);
  if (shown < last.total) {
    body.append(h("button", { type: "button", class: "link-button", onclick: loadMore }, `Show more: ${count(last.total - shown)} of ${count(last.total)} tokens left`));
  }
}

/**
 * @param {HTMLElement} body
 * @param {import("./rollout_data.js").Stream} stream
 * @param {Lens} lens
 * @param {[number, number]} range
 */
export function growTokens(body, stream, lens, range) {
  let box = /** @type {HTMLElement|null} */ (body.querySelector(".tokens"));
  const version = `${lens.key} ${range} ${stream.redraws}`;
  if (!box || box.dataset.drawn !== version || Number(box.dataset.tokens) > stream.ids.length) {
    box = h("div", { class: `tokens lens-${lens.key}`, "data-drawn": version, "data-tokens": 0 });
    body.replaceChildren(box);
  }
  box.append(tokenSpans(streamColumns(stream), lens, range, Number(box.dataset.tokens)));
  box.dataset.tokens = String(stream.ids.length);
}
