// @ts-check
/** The tabs beside conversation and tokens: terminal, changes, verifier, timeline, raw. Each loads when it is opened. */

import { ansiPieces } from "./ansi.js";
import { h, svg } from "./dom.js";
import { count, decimal, duration } from "./format.js";
import { shown, textBlock } from "./text_view.js";

/** @param {HTMLElement} root @param {string} title @param {string} [text] */
export function drawBlank(root, title, text = "") {
  root.replaceChildren(h("div", { class: "blank" }, h("p", { class: "blank-title" }, title), text && h("p", null, text)));
}

/** @param {HTMLElement} root */
export function drawLoading(root) {
  root.replaceChildren(h("div", { class: "panel-loading", "aria-label": "Loading" }, ...[80, 60, 70].map((w) => h("div", { class: `skeleton w-${w}` }))));
}

/** @param {HTMLElement} root @param {Error} error @param {() => void} again */
export function drawError(root, error, again) {
  root.replaceChildren(
    h("div", { class: "notice notice-bad" }, h("p", null, `This could not be loaded. ${error.message} `, h("button", { type: "button", class: "link-button", onclick: again }, "Try again"))),
  );
}

/**
 * The whole terminal; later output is appended while it is open.
 * @param {HTMLElement} root
 * @param {any} data
 * @param {boolean} raw
 * @param {(raw: boolean) => void} onRaw
 */
export function drawTerminal(root, data, raw, onRaw) {
  if (!data.text) {
    drawBlank(root, "No terminal output", "The harness has written nothing to its terminal.");
    return;
  }
  const screen = h("pre", { class: "terminal", tabindex: 0, "aria-label": "Terminal output" });
  appendTerminal(screen, data.text, raw);
  const note = data.source === "live" ? (data.whole ? "live" : "live; the earliest output is no longer in the live log") : "as recorded";
  root.replaceChildren(
    h("div", { class: "panel-tools" }, h("span", { class: "faint small" }, `${count(data.text.length)} characters, ${note}`), h("button", { type: "button", class: "link-button", onclick: () => onRaw(!raw) }, raw ? "Rendered" : "Raw")),
    screen,
  );
}

/** @param {HTMLElement} screen @param {string} text @param {boolean} raw */
export function appendTerminal(screen, text, raw) {
  if (raw) screen.append(shown(text).replace(/\x1b/g, "^["));
  else screen.append(...ansiPieces(shown(text)).map((piece) => h("span", { class: piece.classes || null }, piece.text)));
}

/** A unified diff by file, lines marked by sign and colour. @param {HTMLElement} root @param {any} data */
export function drawChanges(root, data) {
  if (!data.diff) {
    if (data.state === "ended") drawBlank(root, "Nothing was changed", "The work tree was left as it began.");
    else drawBlank(root, "Not yet", "The work tree is compared with its start when the harness has ended.");
    return;
  }
  root.replaceChildren(...diffParts(shown(data.diff)).map(diffFile));
}

/** One part a file, with or without git's own header lines. @param {string} diff */
export function diffParts(diff) {
  const border = /^diff --git /m.test(diff) ? /^(?=diff --git )/m : /^(?=--- .*\n\+\+\+ )/m;
  return diff.split(border).filter((part) => part.trim());
}

/** @param {string} text */
function diffFile(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  const header = lines.find((line) => line.startsWith("+++ ")) ?? lines[0];
  const old = lines.find((line) => line.startsWith("--- "));
  const name = (header.includes("/dev/null") && old ? old : header).replace(/^(\+\+\+|---|diff --git) (a\/|b\/)?/, "").split("\t")[0];
  const from = lines.findIndex((line) => line.startsWith("@@"));
  const body = from < 0 ? lines.slice(1) : lines.slice(from);
  const added = body.filter((line) => line.startsWith("+")).length;
  const removed = body.filter((line) => line.startsWith("-")).length;
  return h(
    "details",
    { class: "diff-file", open: lines.length < 800 },
    h("summary", null, h("span", { class: "mono" }, name), h("span", { class: "diff-sum" }, h("span", { class: "good" }, `+${added}`), " ", h("span", { class: "bad" }, `−${removed}`))),
    h("pre", { class: "diff" }, body.map((line) => h("span", { class: `diff-line ${diffKind(line)}` }, `${line}\n`))),
  );
}

/** @param {string} line */
function diffKind(line) {
  if (line.startsWith("@@")) return "diff-hunk";
  if (line.startsWith("+")) return "diff-add";
  return line.startsWith("-") ? "diff-remove" : "";
}

/** @param {HTMLElement} root @param {any} data */
export function drawVerifier(root, data) {
  const parts = Object.entries(data.reward_parts ?? {});
  const facts = [
    ["reward", data.reward === null ? (data.state === "ended" ? "not scored" : "not yet") : decimal(data.reward, 3)],
    ["trials", count(data.trials)],
    ...parts.map(([name, value]) => [name, typeof value === "number" ? decimal(value, 3) : JSON.stringify(value)]),
  ];
  root.replaceChildren(
    h("dl", { class: "facts verifier-facts" }, facts.map(([name, value]) => [h("dt", null, name), h("dd", { class: "mono" }, value)])),
    data.error ? h("div", { class: "notice notice-bad" }, data.error) : "",
    data.text ? h("pre", { class: "terminal", "data-verifier": "" }) : h("p", { class: "faint" }, data.state === "ended" ? "The verifier wrote no log." : "The verifier runs when the harness has ended."),
  );
  const screen = root.querySelector("pre");
  if (screen instanceof HTMLElement) appendTerminal(screen, data.text, false);
}

const LANES = ["queue", "model", "held", "tools", "verify"];

/**
 * Where the time went: five lanes over the whole rollout, then every call.
 * @param {HTMLElement} root
 * @param {any} data
 * @param {(node: number) => void} onNode
 */
export function drawTimeline(root, data, onNode) {
  const spans = spansOf(data);
  if (!spans.length) {
    drawBlank(root, "Nothing has happened yet", "Times appear with the first model call.");
    return;
  }
  const first = Math.min(...spans.map((span) => span.from));
  const last = Math.max(...spans.map((span) => span.to));
  const whole = Math.max(1, last - first);
  const lanes = LANES.map((lane) => {
    const own = spans.filter((span) => span.lane === lane);
    const total = own.reduce((sum, span) => sum + span.to - span.from, 0) / 1000;
    const bar = svg("svg", { class: "lane", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": `${lane}: ${duration(total)}` });
    for (const span of own) {
      const rect = svg("rect", { x: (1000 * (span.from - first)) / whole, y: 1, width: Math.max(1, (1000 * (span.to - span.from)) / whole), height: 14, class: `lane-${lane}` });
      const title = svg("title", {});
      title.textContent = `${span.name}: ${duration((span.to - span.from) / 1000)}`;
      rect.append(title);
      bar.append(rect);
    }
    return [h("span", { class: "lane-name" }, lane), bar, h("span", { class: "lane-total mono" }, duration(total))];
  });
  root.replaceChildren(
    h("div", { class: "lanes" }, lanes),
    h("p", { class: "faint small lanes-scale" }, h("span", null, "0 s"), h("span", null, duration(whole / 1000))),
    callTable(data, first, onNode, 200),
  );
}

/** @param {any} data @returns {{lane: string, name: string, from: number, to: number}[]} */
export function spansOf(data) {
  const spans = [];
  const { created_at, started_at, harness_ended_at, ended_at } = data.rollout;
  if (started_at) spans.push({ lane: "queue", name: "queued", from: created_at, to: started_at });
  let end = started_at ?? created_at;
  for (const call of data.calls) {
    const from = call.started_at;
    const held = 1000 * (call.held_s || 0);
    const to = from + 1000 * (call.duration_s ?? call.first_token_s ?? 0);
    if (from > end) spans.push({ lane: "tools", name: "harness and tools", from: end, to: from });
    if (held) spans.push({ lane: "held", name: `call ${call.index} held`, from, to: from + held });
    spans.push({ lane: "model", name: `call ${call.index}`, from: from + held, to: Math.max(to, from + held) });
    end = Math.max(end, to);
  }
  if (harness_ended_at && harness_ended_at > end) spans.push({ lane: "tools", name: "harness", from: end, to: harness_ended_at });
  if (harness_ended_at && ended_at) spans.push({ lane: "verify", name: "verifier", from: harness_ended_at, to: ended_at });
  return spans.filter((span) => span.to >= span.from);
}

/** @param {any} data @param {number} first @param {(node: number) => void} onNode @param {number} limit */
function callTable(data, first, onNode, limit) {
  const head = ["call", "at", "prompt", "cached", "sampled", "first token", "held", "duration", "state"];
  const rows = data.calls.slice(0, limit).map((/** @type {any} */ call) =>
    h(
      "tr",
      null,
      h("td", null, call.answer_node === null ? `${call.index}` : h("button", { type: "button", class: "link-button", onclick: () => onNode(call.answer_node) }, `${call.index} → n${call.answer_node}`)),
      ...[duration((call.started_at - first) / 1000), count(call.num_prompt_tokens), count(call.num_cached_tokens), count(call.num_sampled_tokens), duration(call.first_token_s), duration(call.held_s), duration(call.duration_s)].map((text) => h("td", { class: "num" }, text)),
      h("td", null, call.error ? `${call.state}: ${call.error}` : call.finish_reason ? `${call.state}, ${call.finish_reason}` : call.state),
    ),
  );
  const box = h("div", { class: "table-wrap" }, h("table", { class: "table" }, h("thead", null, h("tr", null, head.map((name, i) => h("th", { class: i && i < 8 ? "num" : null }, name)))), h("tbody", null, rows)));
  if (data.calls.length > limit) {
    box.append(h("button", { type: "button", class: "link-button", onclick: () => box.replaceWith(callTable(data, first, onNode, limit * 4)) }, `Show more: ${count(data.calls.length - limit)} calls left`));
  }
  return box;
}

/**
 * @param {HTMLElement} root
 * @param {any} data
 * @param {(first: number) => void} onWindow
 */
export function drawRaw(root, data, onWindow) {
  const step = 10;
  const last = Math.min(data.num_nodes, data.first + step);
  root.replaceChildren(
    h(
      "div",
      { class: "panel-tools" },
      h("span", { class: "faint small" }, `The record: nodes ${count(data.first)} to ${count(Math.max(data.first, last - 1))} of ${count(data.num_nodes)}, with ids and logprobs`),
      h("button", { type: "button", class: "button button-small", disabled: data.first === 0, onclick: () => onWindow(Math.max(0, data.first - step)) }, "Earlier"),
      h("button", { type: "button", class: "button button-small", disabled: last >= data.num_nodes, onclick: () => onWindow(data.first + step) }, "Later"),
    ),
    textBlock(JSON.stringify({ rollout: data.rollout, nodes: data.nodes, calls: data.calls }, compactNumbers, 1), { label: "raw" }),
  );
}

/** Arrays of numbers on one line. @param {string} _ @param {any} value */
function compactNumbers(_, value) {
  return Array.isArray(value) && value.length > 8 && value.every((one) => typeof one === "number") ? `[${value.join(", ")}]` : value;
}

/** @param {HTMLElement} root @param {any} data @param {number} index @param {() => void} back */
export function drawRequest(root, data, index, back) {
  root.replaceChildren(
    h("div", { class: "panel-tools" }, h("span", { class: "badge badge-warn" }, "rebuilt"), h("span", { class: "small" }, `Request of call ${count(index)}. ${data.note}`), h("button", { type: "button", class: "link-button", onclick: back }, "Back to the record")),
    textBlock(JSON.stringify(data, null, 2)),
  );
}
