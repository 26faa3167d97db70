// @ts-check
/**
 * One run's page, kept fresh.
 *
 * From:  the bell of its attempt on /live; without it, a poll every two seconds.
 * To:    htmx swaps the fragments; charts are redrawn when a step was added.
 * Holds: at most one refresh a second; says how live it is.
 */

import { draw, drawLegend } from "./charts.js";

const page = /** @type {HTMLElement} */ (document.getElementById("run"));
let over = page.dataset.over === "yes";
let lastRefresh = 0;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let pending;
/** @type {import("./charts.js").ChartData[]} */
let charts = [];
let drawn = "";

/** @param {"live"|"catching-up"|"reconnecting"|"ended"} state @param {string} words */
function say(state, words) {
  const node = document.getElementById("liveness");
  if (!node || (over && state !== "ended")) return;
  node.dataset.state = state;
  node.textContent = words;
}

/** @param {number} step */
const openStep = (step) => location.assign(`${page.dataset.rolloutsUrl}?step=${step}`);

/** @param {number} value */
const short = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString() : String(Number(value.toPrecision(3))));

function drawAll() {
  let later = 0;
  for (const chart of charts) {
    const figure = page.querySelector(`[data-chart="${chart.id}"]`);
    if (!figure) continue;
    const plot = /** @type {HTMLElement} */ (figure.querySelector(".plot"));
    const none = /** @type {HTMLElement} */ (figure.querySelector(".chart-none"));
    const empty = chart.series.length === 0;
    plot.hidden = empty;
    none.hidden = !empty;
    none.textContent = "not recorded";
    /** @type {HTMLElement} */ (figure).hidden = empty && !over;
    later += Number(empty && !over);
    if (empty) continue;
    draw(plot, chart, openStep);
    drawLegend(/** @type {Element} */ (figure.querySelector(".chart-legend")), chart);
    const last = chart.series[0].y.at(-1);
    /** @type {HTMLElement} */ (figure.querySelector(".chart-now")).textContent = last === undefined || chart.stacked ? "" : short(last);
  }
  const note = document.getElementById("charts-later");
  if (!note) return;
  note.hidden = later === 0;
  note.textContent = `${later} more ${later === 1 ? "chart comes" : "charts come"} with ${later === 1 ? "its" : "their"} first numbers ·`;
}

async function refreshCharts() {
  const response = await fetch(page.dataset.chartsUrl ?? "");
  if (!response.ok) return;
  const text = await response.text();
  if (text === drawn) return;
  drawn = text;
  charts = JSON.parse(text).charts;
  drawAll();
}

function refresh() {
  clearTimeout(pending);
  const wait = lastRefresh + 1000 - Date.now();
  if (wait > 0) {
    pending = setTimeout(refresh, wait);
    return;
  }
  lastRefresh = Date.now();
  if (document.visibilityState !== "visible" || document.querySelector("[popover]:popover-open")) return;
  document.getElementById("live")?.dispatchEvent(new CustomEvent("gyre:refresh"));
  refreshCharts().catch(() => {});
}

function poll() {
  say("live", "live, every 2 s");
  return setInterval(refresh, 2000);
}

async function follow() {
  let client;
  try {
    client = await import("./watch/live_client.js");
  } catch {
    poll();
    return;
  }
  let timer = poll();
  const live = new client.LiveClient(client.liveUrl(location), {
    onStatus: (/** @type {any} */ status) => {
      clearInterval(timer);
      if (status.state === "live") {
        say("live", "live");
        timer = setInterval(refresh, 10_000);
        return;
      }
      timer = setInterval(refresh, 2000);
      if (status.state === "reconnecting" && status.retryAt) {
        say("reconnecting", `reconnecting in ${Math.max(1, Math.ceil((status.retryAt - Date.now()) / 1000))} s`);
      } else say("catching-up", status.state === "ended" ? status.reason || "ended" : "catching up");
    },
  });
  live.subscribe(`attempt:${page.dataset.attempt}`, null, { onChanged: refresh });
}

document.addEventListener("htmx:afterSettle", () => {
  if (document.getElementById("run-head")?.dataset.over !== "yes") return;
  over = true;
  drawAll();
  say("ended", "ended");
});
document.addEventListener("gyre:theme", () => setTimeout(drawAll, 50));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(drawAll, 50));
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && !over) refresh();
});
refreshCharts().catch(() => {});
if (!over) void follow();
