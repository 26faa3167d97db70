// @ts-check
/**
 * Text of models and tools on the page: code fences, ANSI, long texts folded with a control, raw toggle.
 * Never: markup from the text; everything is a text node.
 */

import { ansiPieces, hasAnsi } from "./ansi.js";
import { h } from "./dom.js";
import { count } from "./format.js";

const FOLD_LINES = 36;
const FOLD_CHARS = 6000;
const ESCAPED = /\uf8ff(0|m|s[0-9a-f]{4})/g;

/** The record escapes NUL and lone surrogates reversibly; shown as visible signs. @param {string} text */
export function shown(text) {
  if (!text.includes("\uf8ff")) return text;
  return text.replace(ESCAPED, (_, code) => (code === "0" ? "␀" : code === "m" ? "\uf8ff" : `�`));
}

/**
 * A block of text that folds when it is long. `whole`: fetches what the server left out.
 * @param {string} text
 * @param {{ansi?: boolean, fences?: boolean, cutLength?: number, whole?: () => Promise<string>, label?: string}} [options]
 */
export function textBlock(text, options = {}) {
  const box = h("div", { class: "text-block" });
  draw(box, shown(text), options, false, true);
  return box;
}

/**
 * @param {HTMLElement} box
 * @param {string} text
 * @param {any} options
 * @param {boolean} raw
 * @param {boolean} folded
 */
function draw(box, text, options, raw, folded) {
  const lines = countLines(text);
  const isLong = lines > FOLD_LINES || text.length > FOLD_CHARS;
  const content = h("div", { class: isLong && folded ? "text-content folded" : "text-content" }, ...pieces(text, options, raw));
  const tools = h("div", { class: "text-tools" });
  if (isLong) {
    const more = folded ? `Show all ${count(lines)} lines` : "Fold";
    tools.append(h("button", { type: "button", class: "link-button", onclick: () => draw(box, text, options, raw, !folded) }, more));
  }
  if (options.cutLength > text.length && options.whole) {
    const load = async () => draw(box, shown(await options.whole()), { ...options, cutLength: 0 }, raw, false);
    const words = `Load the rest (${count(options.cutLength - text.length)} more characters)`;
    tools.append(h("button", { type: "button", class: "link-button", onclick: load }, words));
  }
  if (options.ansi && hasAnsi(text)) {
    tools.append(
      h("button", { type: "button", class: "link-button", "aria-pressed": String(raw), onclick: () => draw(box, text, options, !raw, folded) }, raw ? "Rendered" : "Raw"),
    );
  }
  box.replaceChildren(content, ...(tools.childNodes.length ? [tools] : []));
  if (isLong && !folded) box.dataset.open = "";
  else delete box.dataset.open;
}

/** @param {string} text */
function countLines(text) {
  let lines = 1;
  for (let at = text.indexOf("\n"); at !== -1; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}

/** @param {string} text @param {any} options @param {boolean} raw @returns {(Node|string)[]} */
function pieces(text, options, raw) {
  if (raw) return [visibleControls(text)];
  if (options.ansi && hasAnsi(text)) {
    return ansiPieces(text).map((piece) => (piece.classes ? h("span", { class: piece.classes }, piece.text) : piece.text));
  }
  return options.fences ? fencePieces(text) : [text];
}

/** @param {string} text */
function visibleControls(text) {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, (sign) => `^${String.fromCharCode(sign.charCodeAt(0) ^ 0x40)}`);
}

/** Code fences as blocks, everything else as it is. @param {string} text @returns {(Node|string)[]} */
function fencePieces(text) {
  const out = [];
  const fence = /^```([^\n`]*)\n([\s\S]*?)(?:^```[ \t]*$|(?![\s\S]))/gm;
  let from = 0;
  for (const match of text.matchAll(fence)) {
    const before = text.slice(from, match.index).replace(/\n+$/, "");
    if (before) out.push(h("div", { class: "prose" }, before));
    out.push(codeBlock(match[2].replace(/\n$/, ""), match[1].trim()));
    from = match.index + match[0].length;
  }
  const rest = text.slice(from).replace(/^\n+/, "");
  if (rest) out.push(from ? h("div", { class: "prose" }, rest) : rest);
  return out;
}

/** @param {string} code @param {string} language */
export function codeBlock(code, language) {
  return h("div", { class: "code-block" }, language && h("span", { class: "code-language" }, language), h("pre", null, code));
}
