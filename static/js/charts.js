// @ts-check
/** Small Plotly charts in the colours of the page. Holds: colours come from CSS roles only. */

/** @typedef {{name: string, key: string, band: boolean, x: number[], y: number[]}} Series */
/** @typedef {{id: string, unit: string, stacked: boolean, kind: string, series: Series[]}} ChartData */

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

/** A role as the browser resolves it now, light or dark. @param {string} role */
export function colour(role) {
  probe.style.color = `var(${role})`;
  return getComputedStyle(probe).color;
}

/** @param {ChartData} chart @param {boolean} single */
function traces(chart, single) {
  return chart.series.map((series, index) => {
    const line = colour(`--series-${index + 1}`);
    if (chart.stacked) {
      return { type: "bar", name: series.name, x: series.x, y: series.y, marker: { color: line }, hovertemplate: `%{y:.3~g} ${chart.unit}<extra>${series.name}</extra>` };
    }
    return {
      type: "scatter",
      mode: series.x.length > 60 ? "lines" : "lines+markers",
      name: series.name,
      x: series.x,
      y: series.y,
      line: { color: line, width: series.band ? 1 : 2, dash: series.band ? "dot" : "solid" },
      marker: { color: line, size: series.band ? 4 : 5, symbol: index ? "diamond-open" : "circle" },
      hovertemplate: `%{y:.4~g} ${chart.unit}<extra>${single ? "" : series.name}</extra>`,
    };
  });
}

/** @param {ChartData} chart */
function layout(chart) {
  const isPositive = chart.series.every((series) => series.y.every((value) => value === null || value >= 0));
  const steps = chart.series.flatMap((series) => series.x);
  const last = Math.max(...steps, 1);
  const first = Math.min(...steps);
  const room = Math.max(0.3, (last - first) * 0.03);
  const axis = {
    color: colour("--text-faint"),
    gridcolor: colour("--line"),
    linecolor: colour("--line-strong"),
    zeroline: false,
    fixedrange: false,
    ticks: "",
    nticks: 5,
    automargin: false,
  };
  return {
    margin: { l: 40, r: 8, t: 8, b: 24 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--text-muted") },
    height: 152,
    showlegend: false,
    barmode: "stack",
    bargap: 0.35,
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--float"), bordercolor: colour("--line-strong"), font: { size: 11, color: colour("--text") } },
    xaxis: { ...axis, range: chart.stacked ? [first - 0.6, last + 0.6] : [first - room, last + room], showgrid: false, tickformat: "d", dtick: last - first <= 10 ? 1 : undefined },
    yaxis: { ...axis, rangemode: isPositive ? "tozero" : "normal", tickformat: "~g" },
  };
}

/** Names of the series beside signs like their lines. @param {Element} box @param {ChartData} chart */
export function drawLegend(box, chart) {
  box.replaceChildren();
  if (chart.series.length < 2) return;
  chart.series.forEach((series, index) => {
    const entry = document.createElement("span");
    const sign = document.createElement("i");
    sign.className = `key key-${index + 1}${chart.stacked ? " key-bar" : series.band ? " key-band" : ""}`;
    entry.append(sign, series.name);
    box.append(entry);
  });
}

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", scrollZoom: false };

/**
 * Draw, or redraw in place.
 * @param {HTMLElement} plot @param {ChartData} chart @param {(step: number) => void} onStep
 */
export function draw(plot, chart, onStep) {
  const plotly = /** @type {any} */ (window).Plotly;
  plotly.react(plot, traces(chart, chart.series.length === 1), layout(chart), CONFIG);
  const node = /** @type {any} */ (plot);
  if (!node.hasStepClick && chart.kind === "policy") {
    node.hasStepClick = true;
    node.on("plotly_click", (/** @type {any} */ event) => onStep(event.points[0].x));
  }
}
