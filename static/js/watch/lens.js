// @ts-check
/**
 * Lenses: a number a token, brought to nine even bins, each with a colour class and a legend. Pure.
 * Colours are in watch.css (--seq-0..8 one hue, --div-0..8 blue to orange): even in lightness, safe for colour-blind eyes.
 */

/**
 * @typedef {object} TokenFacts   one token as the views know it; null: not recorded
 * @property {number} id
 * @property {string} text
 * @property {number|null} logprob
 * @property {number|null} version
 * @property {number} mask
 * @property {number|null} trainer
 * @property {number|null} advantage
 */
/**
 * @typedef {object} Lens
 * @property {string} key
 * @property {string} name
 * @property {string} meaning
 * @property {"seq"|"div"|"shape"} scale
 * @property {(token: TokenFacts) => number|null} value
 * @property {[number, number]|null} range   values at the first and last bin; null: from the data
 * @property {(value: number) => string} label
 */

/** @type {Lens[]} */
export const LENSES = [
  {
    key: "logprob", name: "log-probability", scale: "seq", range: [0, -6],
    meaning: "What the engine gave the token when it sampled it. Strong colour: an unlikely token.",
    value: (token) => token.logprob, label: (value) => value.toFixed(1).replace("-", "−"),
  },
  {
    key: "version", name: "policy version", scale: "seq", range: null,
    meaning: "Which weights sampled the token. A bar stands where they changed inside a message.",
    value: (token) => token.version, label: (value) => (value < 0 ? "expert" : `v${Math.round(value)}`),
  },
  {
    key: "mask", name: "loss mask", scale: "shape", range: [0, 1],
    meaning: "Underlined tokens are (or would be) in the loss; faint ones are context.",
    value: (token) => token.mask, label: (value) => (value >= 0.5 ? "in the loss" : "context"),
  },
  {
    key: "advantage", name: "advantage", scale: "div", range: [-2, 2],
    meaning: "Credit that training gave the token where the mask is 1: its rollout's advantage, or its turn's share of it.",
    value: (token) => (token.mask ? token.advantage : null), label: (value) => value.toFixed(1).replace("-", "−"),
  },
  {
    key: "mismatch", name: "trainer mismatch", scale: "div", range: [-0.5, 0.5],
    meaning: "Trainer's minus engine's log-probability of the token. Far from 0: the two disagree.",
    value: (token) => (token.trainer === null || token.logprob === null ? null : token.trainer - token.logprob),
    label: (value) => value.toFixed(2).replace("-", "−"),
  },
];

export const NUM_BINS = 9;

/** @param {string|null} key */
export function lensOf(key) {
  return LENSES.find((lens) => lens.key === key) ?? LENSES[0];
}

/** @param {string} key */
export function nextLens(key) {
  return LENSES[(LENSES.findIndex((lens) => lens.key === key) + 1) % LENSES.length];
}

/**
 * @param {Lens} lens
 * @param {[number, number]} range
 * @param {number|null} value
 * @returns {number|null} 0 to 8; null: nothing recorded, no colour
 */
export function binOf(lens, range, value) {
  if (value === null || Number.isNaN(value)) return null;
  const [first, last] = range;
  if (first === last) return lens.scale === "div" ? 4 : 2;
  const share = (value - first) / (last - first);
  return Math.max(0, Math.min(NUM_BINS - 1, Math.round(share * (NUM_BINS - 1))));
}

/**
 * Where the scale begins and ends: fixed, so that colours mean the same on every page, or (versions) the rollout's own.
 * @param {Lens} lens
 * @param {number[]} versions  all versions of the rollout
 * @returns {[number, number]}
 */
export function rangeOf(lens, versions) {
  if (lens.range) return lens.range;
  if (!versions.length) return [0, 0];
  return [Math.min(...versions), Math.max(...versions)];
}

/**
 * @param {Lens} lens
 * @param {[number, number]} range
 * @returns {{bin: number, label: string}[]}
 */
export function legendOf(lens, range) {
  if (lens.scale === "shape") return [];
  const [first, last] = range;
  if (first === last) return [{ bin: /** @type {number} */ (binOf(lens, range, first)), label: lens.label(first) }];
  const whole = lens.key === "version" && Math.abs(last - first) < NUM_BINS;
  const steps = whole ? Math.abs(last - first) + 1 : NUM_BINS;
  return Array.from({ length: steps }, (_, i) => {
    const value = first + ((last - first) * i) / (steps - 1);
    const bin = /** @type {number} */ (binOf(lens, range, value));
    const named = whole || lens.key === "version" || i % 2 === 0;
    return { bin, label: named ? lens.label(value) : "" };
  });
}
