// @ts-check
/** What the sandbox asked of the network: what it may reach, and every request with its verdict. */

import { h } from "./dom.js";
import { count, duration } from "./format.js";
import { drawBlank } from "./panels.js";

const HEAD = ["at", "method", "host", "verdict", "sent", "received", "duration"];

/** @param {HTMLElement} root @param {any} data */
export function drawNetwork(root, data) {
  const reach = data.allowed.length ? `It may reach ${data.allowed.join(", ")}.` : data.wish ? `${data.wish} It has none.` : "Its task names no hosts: it has no network.";
  if (!data.requests.length) {
    drawBlank(root, "No requests", data.allowed.length ? `${reach} It asked for nothing yet.` : reach);
    return;
  }
  root.replaceChildren(
    h("p", { class: "faint small" }, `${reach} ${count(data.number)} requests, ${count(data.denied)} denied.`),
    h(
      "div",
      { class: "table-wrap" },
      h("table", { class: "table" }, h("thead", null, h("tr", null, HEAD.map((name, i) => h("th", { class: i > 3 ? "num" : null }, name)))), h("tbody", null, data.requests.map(row))),
    ),
    data.number > data.requests.length ? h("p", { class: "faint small" }, `The first ${count(data.requests.length)} are shown.`) : "",
  );
}

/** @param {any} one */
function row(one) {
  const verdict = one.reason ? `${one.verdict}: ${one.reason}` : one.verdict;
  return h(
    "tr",
    null,
    h("td", { class: "nowrap", title: one.at }, duration(one.after_s)),
    h("td", null, one.method),
    h("td", { class: "mono wrap" }, `${one.host}:${one.port}`),
    h("td", { class: one.verdict === "allowed" ? null : "bad" }, verdict),
    ...[count(one.sent_bytes), count(one.received_bytes), one.duration_s === null ? "open" : duration(one.duration_s)].map((text) => h("td", { class: "num" }, text)),
  );
}
