// @ts-check
/** The lens switch and its legend of numbers. */

import { h } from "./dom.js";
import { legendOf, LENSES } from "./lens.js";

/** @typedef {import("./lens.js").Lens} Lens */

/** @param {HTMLElement} root @param {Lens} chosen @param {(key: string) => void} onLens */
export function drawLensSwitch(root, chosen, onLens) {
  if (root.dataset.lens === chosen.key) return;
  root.dataset.lens = chosen.key;
  root.replaceChildren(
    ...LENSES.map((lens) => h("button", { type: "button", "aria-pressed": String(lens === chosen), title: lens.meaning, onclick: () => onLens(lens.key) }, lens.name)),
  );
}

/** @param {HTMLElement} root @param {Lens} lens @param {[number, number]} range */
export function drawLegend(root, lens, range) {
  const drawn = `${lens.key} ${range}`;
  if (root.dataset.drawn === drawn) return;
  root.dataset.drawn = drawn;
  const shapes = [
    h("span", { class: "legend-shape" }, h("span", { class: "t special" }, "<|s|>"), "special"),
    h("span", { class: "legend-shape" }, h("span", { class: "t m0" }, "abc"), "context"),
    ...(lens.scale === "shape" ? [h("span", { class: "legend-shape lens-mask" }, h("span", { class: "t" }, "abc"), "in the loss")] : []),
  ];
  const bins = legendOf(lens, range).map(({ bin, label }) => h("span", { class: `legend-bin ${lens.scale}-${bin}` }, label));
  root.replaceChildren(h("span", { class: "legend-bins" }, bins), ...shapes);
  root.title = lens.meaning;
}
