// Figures as plain data -> uPlot. Colours come from the style sheet, so that dark and light are decided in one place.

const charts = [];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesColour(index, name) {
  const fixed = { "base model": "--c-base", "after warm-up": "--c-warmup", "after GRPO": "--c-tuned" };
  return css(fixed[name] || `--c${index % 8}`);
}

function formatted(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (unit === "share") return `${(100 * value).toFixed(Math.abs(value) < 0.0995 && value !== 0 ? 1 : 0)} %`;
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return Number(value.toPrecision(3)).toString();
}

// A card with a title, a legend whose values follow the cursor, and the plot.
function chartCard(figure, onStep) {
  const card = el("figure", { class: `card chart${figure.small ? " small" : ""}`, id: `figure-${figure.id}` });
  const readout = el("span", { class: "readout" });
  card.append(el("figcaption", {}, el("h3", { text: figure.title }), readout));
  if (figure.note) card.append(el("p", { class: "note", text: figure.note }));
  const legend = el("div", { class: "legend" });
  if (figure.series.length > 1) card.append(legend);
  const place = el("div", { class: "plot" });
  card.append(place);
  const chart = { figure, place, readout, legend, onStep, plot: null, hidden: new Set() };
  charts.push(chart);
  new ResizeObserver(() => resize(chart)).observe(place);
  return card;
}

function resize(chart) {
  const width = Math.floor(chart.place.clientWidth);
  if (width < 40) return;
  if (!chart.plot) draw(chart, width);
  else if (chart.plot.width !== width) chart.plot.setSize({ width, height: chart.plot.height });
}

function redrawAll() {
  for (const chart of charts) {
    if (!chart.plot) continue;
    chart.plot.destroy();
    chart.plot = null;
    resize(chart);
  }
}

function draw(chart, width) {
  const { figure } = chart;
  const columns = plotColumns(figure);
  const options = {
    width,
    height: figure.small ? 130 : 200,
    padding: [10, 12, 0, 0],
    legend: { show: false },
    cursor: {
      points: { size: 7 },
      drag: { x: figure.kind === "lines", y: false },
      ...(figure.kind === "lines" ? { sync: { key: "step" } } : {}),
    },
    scales: { x: xScale(figure), y: { range: yRange(figure) } },
    axes: [xAxis(figure), yAxis(figure)],
    series: [{}, ...columns.series],
    bands: columns.bands,
    hooks: {
      setCursor: [(plot) => showValues(chart, plot)],
      draw: [(plot) => drawExtras(figure, plot)],
    },
  };
  chart.plot = new uPlot(options, [figure.x, ...columns.values], chart.place);
  fillLegend(chart);
  showValues(chart, chart.plot);
  if (chart.onStep && figure.kind === "lines") {
    chart.plot.over.addEventListener("click", () => {
      const at = chart.plot.cursor.idx;
      if (at !== null && at !== undefined && chart.plot.select.width < 3) chart.onStep(figure.x[at]);
    });
  }
}

function plotColumns(figure) {
  const series = [], values = [], bands = [];
  figure.series.forEach((line, index) => {
    const colour = seriesColour(index, line.name);
    const single = figure.x.length < 2;
    const look = {
      lines: { paths: uPlot.paths.linear(), points: { show: single || undefined, size: 5 } },
      steps: { paths: uPlot.paths.stepped({ align: 1 }), fill: `${colour}22`, points: { show: false } },
      points: { paths: () => null, points: { show: false } },
    }[figure.kind];
    series.push({ label: line.name, stroke: colour, width: 2, spanGaps: true, ...look });
    values.push(line.y);
    if (line.band && figure.kind === "lines") {
      const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      series.push({ ...edge, label: "" }, { ...edge, label: "" });
      values.push(line.band[1], line.band[0]);
      bands.push({ series: [series.length - 1, series.length], fill: `${colour}2b` });
    }
  });
  return { series, values, bands };
}

function xScale(figure) {
  if (figure.categories) return { time: false, range: [-0.6, figure.categories.length - 0.4] };
  if (figure.x.length < 2) return { time: false, range: [figure.x[0] - 1, figure.x[0] + 1] };
  return { time: false };
}

function extent(figure) {
  const all = figure.series.flatMap((line) => [line.y, ...(line.band || [])]).flat().filter((value) => value !== null);
  return [Math.min(...all), Math.max(...all)];
}

function yRange(figure) {
  return (plot, seenLow, seenHigh) => {
    if (seenLow === null || seenLow === undefined) [seenLow, seenHigh] = extent(figure);
    if (figure.unit === "share") {
      return [0, figure.kind === "lines" && seenHigh > 0.6 || figure.categories ? 1.04 : Math.max(0.1, seenHigh * 1.12)];
    }
    let low = seenLow, high = seenHigh;
    if (figure.limit && figure.limit <= 2.5 * high) high = Math.max(high, figure.limit);
    if (low >= 0 && low < 0.6 * high) low = 0;
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    return [low === 0 ? 0 : low - pad, high + pad];
  };
}

function axisLook() {
  return { stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
}

function xAxis(figure) {
  const look = { ...axisLook(), size: 26, gap: 4, grid: { show: false } };
  if (!figure.categories) return { ...look, incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000, 100000] };
  return {
    ...look,
    incrs: [1, 2, 5, 10, 20],
    values: (_, places) => places.map((place) => (Number.isInteger(place) ? figure.categories[place] ?? "" : "")),
  };
}

function yAxis(figure) {
  return { ...axisLook(), size: 52, gap: 6, space: 34, values: (_, places) => places.map((place) => formatted(place, figure.unit)) };
}

// What uPlot has no series for: the limit's dashed line, and points with whiskers beside each other.
function drawExtras(figure, plot) {
  const context = plot.ctx, ratio = devicePixelRatio;
  context.save();
  if (figure.limit && figure.limit <= plot.scales.y.max) {
    const y = plot.valToPos(figure.limit, "y", true);
    context.strokeStyle = css("--muted");
    context.setLineDash([5 * ratio, 5 * ratio]);
    context.lineWidth = ratio;
    line(context, plot.bbox.left, y, plot.bbox.left + plot.bbox.width, y);
  }
  if (figure.kind === "points") figure.series.forEach((line, index) => drawWhiskers(figure, plot, line, index));
  context.restore();
}

function drawWhiskers(figure, plot, series, index) {
  const context = plot.ctx, ratio = devicePixelRatio;
  const shift = (index - (figure.series.length - 1) / 2) * 11 * ratio;
  if (!plot.series[index + 1].show) return;
  context.setLineDash([]);
  context.strokeStyle = context.fillStyle = seriesColour(index, series.name);
  context.lineWidth = 2 * ratio;
  series.y.forEach((value, place) => {
    if (value === null) return;
    const x = plot.valToPos(place, "x", true) + shift;
    const [low, high] = [series.band[0][place], series.band[1][place]];
    if (low !== null) line(context, x, plot.valToPos(low, "y", true), x, plot.valToPos(high, "y", true));
    context.beginPath();
    context.arc(x, plot.valToPos(value, "y", true), 4.5 * ratio, 0, 7);
    context.fill();
  });
}

function line(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

function fillLegend(chart) {
  chart.legend.replaceChildren();
  chart.figure.series.forEach((series, index) => {
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = seriesColour(index, series.name);
    const button = el("button", { type: "button", "aria-pressed": String(!chart.hidden.has(index)) }, swatch, el("span", { text: series.name }), el("b", {}));
    button.addEventListener("click", () => toggle(chart, index, button));
    chart.legend.append(button);
  });
  for (const index of chart.hidden) showSeries(chart, index, false);
}

function toggle(chart, index, button) {
  const hide = !chart.hidden.has(index);
  if (hide) chart.hidden.add(index);
  else chart.hidden.delete(index);
  button.setAttribute("aria-pressed", String(!hide));
  showSeries(chart, index, !hide);
}

function showSeries(chart, index, show) {
  let place = 1;
  chart.figure.series.forEach((series, number) => {
    const count = series.band && chart.figure.kind === "lines" ? 3 : 1;
    for (let part = 0; part < count; part += 1) {
      if (number === index) chart.plot.setSeries(place, { show });
      place += 1;
    }
  });
}

// Under the cursor, else the last.
function showValues(chart, plot) {
  const { figure } = chart;
  const hovered = plot.cursor.idx;
  const at = hovered ?? (figure.kind === "lines" ? figure.x.length - 1 : null);
  if (at === null) {
    chart.readout.textContent = "";
    chart.legend.querySelectorAll("b").forEach((place) => { place.textContent = ""; });
    return;
  }
  const where = figure.categories
    ? `${figure.categories[at]} (${figure.counts[at]} problems)`
    : figure.kind === "steps" ? `from ${figure.x[at]} tokens` : `step ${figure.x[at]}`;
  const values = figure.series.map((series) => valueText(series, at, figure));
  chart.readout.textContent = figure.series.length > 1 ? where : `${where}: ${values[0]}`;
  chart.legend.querySelectorAll("b").forEach((place, index) => { place.textContent = values[index]; });
}

function valueText(series, at, figure) {
  const value = formatted(series.y[at], figure.unit);
  const [low, high] = series.band ? [series.band[0][at], series.band[1][at]] : [null, null];
  if (low === null || low === undefined) return value;
  if (figure.kind === "points") return `${value} (${formatted(low, figure.unit)} to ${formatted(high, figure.unit)})`;
  return `${value} ± ${formatted(high - series.y[at], figure.unit)}`;
}
