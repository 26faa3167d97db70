// @ts-check
/**
 * Terminal text to styled pieces: SGR colours, carriage returns (progress bars), erased lines. Pure.
 *
 * Holds: the pieces' texts never hold an escape; cost is linear; unknown sequences are left out, not shown as noise.
 * Never: makes markup.
 */

/** @typedef {{text: string, classes: string}} Piece */

// CSI, OSC (ended by BEL or ST), and other two-byte escapes.
const SEQUENCE = /\x1b\[([0-9;:?]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]?/g;
const CONTROL = /[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;

/**
 * @param {string} text
 * @returns {Piece[]}
 */
export function ansiPieces(text) {
  /** @type {Piece[]} */
  const pieces = [];
  const style = { fg: "", bg: "", bold: false, dim: false, italic: false, under: false, inverse: false };
  for (const line of overwriteLines(text)) {
    let from = 0;
    for (const match of line.matchAll(SEQUENCE)) {
      add(pieces, line.slice(from, match.index), style);
      if (match[2] === "m") setStyle(style, match[1]);
      from = match.index + match[0].length;
    }
    add(pieces, line.slice(from), style);
  }
  return pieces;
}

/** True where rendering would differ from the raw text. @param {string} text */
export function hasAnsi(text) {
  return text.includes("\x1b") || /\r(?!\n|$)/.test(text) || text.includes("\b");
}

/**
 * What a terminal would show after carriage returns: the last non-empty overwrite of each line.
 * @param {string} text
 * @returns {string[]} lines, each with its newline
 */
function overwriteLines(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  return lines.map((line, i) => {
    const newline = i < lines.length - 1 ? "\n" : "";
    if (!line.includes("\r")) return line + newline;
    const writes = line.split("\r");
    const last = writes.map((write) => write.replace(SEQUENCE, "") !== "").lastIndexOf(true);
    const kept = writes[last] ?? "";
    const styles = writes.slice(0, Math.max(0, last)).flatMap((write) => write.match(/\x1b\[[0-9;]*m/g) ?? []);
    return styles.join("") + kept + newline;
  });
}

/**
 * @param {Piece[]} pieces
 * @param {string} text
 * @param {any} style
 */
function add(pieces, text, style) {
  const clean = text.replace(CONTROL, "");
  if (!clean) return;
  const classes = classesOf(style);
  const last = pieces[pieces.length - 1];
  if (last && last.classes === classes) last.text += clean;
  else pieces.push({ text: clean, classes });
}

/** @param {any} style */
function classesOf(style) {
  const names = [];
  if (style.fg) names.push(`fg-${style.fg}`);
  if (style.bg) names.push(`bg-${style.bg}`);
  for (const name of ["bold", "dim", "italic", "under", "inverse"]) if (style[name]) names.push(`a-${name}`);
  return names.join(" ");
}

/**
 * @param {any} style
 * @param {string} codes
 */
function setStyle(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let i = 0; i < numbers.length; i++) {
    const code = numbers[i];
    if (code === 0) Object.assign(style, { fg: "", bg: "", bold: false, dim: false, italic: false, under: false, inverse: false });
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.under = true;
    else if (code === 7) style.inverse = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.under = false;
    else if (code === 27) style.inverse = false;
    else if (code === 39) style.fg = "";
    else if (code === 49) style.bg = "";
    else if (code >= 30 && code <= 37) style.fg = String(code - 30);
    else if (code >= 90 && code <= 97) style.fg = String(code - 82);
    else if (code >= 40 && code <= 47) style.bg = String(code - 40);
    else if (code >= 100 && code <= 107) style.bg = String(code - 92);
    else if (code === 38 || code === 48) i += extended(style, code === 38 ? "fg" : "bg", numbers.slice(i + 1));
  }
}

/**
 * 256 colours and true colour, brought to the nearest of the 16 named ones, which both themes can show legibly.
 * @param {any} style
 * @param {string} ground
 * @param {number[]} rest
 * @returns {number} numbers eaten
 */
function extended(style, ground, rest) {
  if (rest[0] === 5) {
    style[ground] = nearest256(rest[1] ?? 7);
    return 2;
  }
  if (rest[0] === 2) {
    style[ground] = nearestRgb(rest[1] ?? 0, rest[2] ?? 0, rest[3] ?? 0);
    return 4;
  }
  return 1;
}

/** @param {number} index */
function nearest256(index) {
  if (index < 16) return String(index);
  if (index >= 232) return index < 244 ? "8" : "7";
  const cube = index - 16;
  return nearestRgb(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51);
}

/**
 * @param {number} r
 * @param {number} g
 * @param {number} b
 */
function nearestRgb(r, g, b) {
  const most = Math.max(r, g, b);
  const hue = (r > most * 0.6 ? 1 : 0) + (g > most * 0.6 ? 2 : 0) + (b > most * 0.6 ? 4 : 0);
  return String(most < 60 ? 8 : hue === 7 ? 7 : hue);
}
