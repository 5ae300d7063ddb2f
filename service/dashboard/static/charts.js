// Draws the charts of a page. Their options are data that the server made; a text that begins with `--` names a colour
// of the style sheet, and a series with `columns` gets its points from the study's trials. Tooltips are drawn on the
// canvas, because the content policy admits no inline style.

import { equip, inUnit } from "./chart-tools.js";
import { Columns, pointsOf, says } from "./columns.js";
import { freeChart, named } from "./free-chart.js";

const PAUSE_MS = 250;
const SMALL_PX = 3;

const drawn = new Map(); // by plot: its text, chart, options and theme
const selection = new Map();
const colours = () => getComputedStyle(document.documentElement);
const study = () => document.querySelector("[data-columns]");
let echarts;
let columns;

/** The drawing library, fetched at once and run after the page has been painted: that takes longer than the page. */
async function library() {
  const source = document.querySelector("meta[name=echarts]").content;
  document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href: source }));
  await new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); });
  await import(source);
  return window.echarts;
}

/** The same options with the colours of the day. */
function coloured(value, style) {
  if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map((part) => coloured(part, style));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, coloured(part, style)]));
  }
  return value;
}

const AXIS = {
  axisLine: { lineStyle: { color: "--edge" } },
  axisTick: { lineStyle: { color: "--edge" } },
  axisLabel: { color: "--quiet", hideOverlap: true },
  nameTextStyle: { color: "--quiet" },
  splitLine: { lineStyle: { color: "--line" } },
  minorSplitLine: { show: false },
};

function themeOf(style) {
  const said = {
    ground: "--ground",
    textStyle: { fontFamily: "system-ui, sans-serif" },
    legend: { textStyle: { color: "--text" }, inactiveColor: "--quiet", pageTextStyle: { color: "--quiet" } },
    tooltip: { renderMode: "richText", confine: true, backgroundColor: "--raised", borderColor: "--edge", textStyle: { color: "--text", fontSize: 12 } },
    parallel: { parallelAxisDefault: AXIS },
  };
  for (const kind of ["category", "value", "log", "time"]) said[`${kind}Axis`] = AXIS;
  return coloured(said, style);
}

/** The colour at a place from 0 to 1 between two of the style sheet. */
const rampOf = (style) => (share) => {
  const [from, to] = ["--ramp-low", "--ramp-high"].map((name) => style.getPropertyValue(name).trim().match(/\w\w/g).map((pair) => parseInt(pair, 16)));
  return `rgb(${from.map((part, place) => Math.round(part + (to[place] - part) * share)).join(",")})`;
};

/** Readable numbers between two: powers of ten, then 1, 2, 5, then finer, until there are enough of them. */
function ticks(low, high) {
  for (const factors of [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const factor of factors) found.push(Number(`${factor}e${power}`));
    }
    const inside = found.filter((mark) => mark >= low * (1 - 1e-9) && mark <= high * (1 + 1e-9));
    if (inside.length >= 4) return inside;
  }
  const step = 10 ** Math.floor(Math.log10((high - low) / 2));
  return Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, place) => Number(((Math.ceil(low / step) + place) * step).toPrecision(6))).filter((mark) => mark <= high);
}

function marked(axis, low, high) {
  const customValues = ticks(low, high);
  return { axisTick: { customValues }, axisLabel: { ...axis.axisLabel, customValues, formatter: (value) => Number(inUnit(value, axis).toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 9 }) } };
}

/** The options as ECharts wants them: with points, colours, marks on logarithmic axes, and what buttons need. */
function complete(said, style) {
  const plain = coloured(said, style); // before the points, which are many
  const made = plain.free ? freeChart({ ...plain, free: chosenAxes() ?? plain.free }, columns, rampOf(style)) : plain;
  const filled = (one) => ({ ...one, data: columns ? pointsOf(one.columns, columns, made.values) : [] });
  const options = { ...made, series: made.series.map((one) => (one.columns ? filled(one) : one)) };
  for (const one of options.series) {
    // Dots of less than 4 pixels are filled as squares, several times as fast as circles.
    if (one.large && !one.symbol && one.data.length > one.largeThreshold) one.symbolSize = SMALL_PX;
  }
  for (const axis of [options.xAxis, options.yAxis, ...(options.parallelAxis ?? [])]) {
    if (axis?.type === "log") Object.assign(axis, marked(axis, axis.min, axis.max));
    else if (axis?.unit_ms) axis.axisLabel = { ...axis.axisLabel, formatter: (value) => inUnit(value, axis).toLocaleString("en", { maximumFractionDigits: 9 }) };
  }
  options.tooltip = { ...options.tooltip, formatter: ({ data, name, value }) => data?.name ?? (columns && Array.isArray(value) ? says(value.at(-1), columns) : name) };
  if (options.dataZoom) options.toolbox = { show: true, itemSize: 0, showTitle: false, top: -100, feature: { dataZoom: { filterMode: "none" } } };
  if (options.selects) options.brush = { toolbox: [], xAxisIndex: 0, yAxisIndex: 0, throttleType: "debounce", throttleDelay: PAUSE_MS, outOfBrush: { colorAlpha: 1 }, brushStyle: { borderColor: style.getPropertyValue("--text").trim(), color: "rgba(128,128,128,0.2)" } };
  return options;
}

/** Draws a chart anew when its place has changed in size; the observer also reports the size that it began with. */
const resizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { chart } = drawn.get(target) ?? {};
    if (chart && (chart.getWidth() !== target.clientWidth || chart.getHeight() !== target.clientHeight)) chart.resize();
  }
});

/** Draws one chart anew, or, where it is there already, changes it in place: zoom, tooltip and brush stay. */
function draw(plot, isForced) {
  const text = document.getElementById(plot.dataset.chart).textContent;
  const before = drawn.get(plot);
  const state = `${text}${columns?.last ?? ""}`;
  if (before?.state === state && !isForced) return;
  const style = colours();
  const options = complete(JSON.parse(text), style);
  const { selection: _selected, values, selects: _selects, named: _named, ...said } = options;
  if (before && !isForced) {
    Object.assign(before, { state, options });
    before.chart.setOption(said, { replaceMerge: ["series"] });
    equip(plot, echarts, () => drawn.get(plot));
    return;
  }
  before?.chart.dispose();
  const theme = themeOf(style);
  const chart = echarts.init(plot, theme, { renderer: "canvas" });
  drawn.set(plot, { state, chart, options, theme });
  chart.setOption(said);
  chart.on("click", ({ data, value }) => {
    if (data?.href) location.assign(data.href);
    else if (columns && Array.isArray(data)) location.assign(`${study().dataset.study}/trials/${columns.values.get("trial")[value.at(-1)]}`);
  });
  resizes.observe(plot);
  chart.on("datazoom", () => remark(chart));
  chart.on("brushEnd", ({ areas }) => { if (areas.length) selectArea(drawn.get(plot).options, areas[0].coordRange); });
  if (said.parallelAxis) brush(chart, values, () => drawn.get(plot).options);
  equip(plot, echarts, () => drawn.get(plot));
}

/** Marks for the part of the axes that is in view, at readable numbers and not at its edges. */
function remark(chart) {
  const { xAxis, yAxis, dataZoom } = chart.getOption();
  const changed = {};
  for (const [place, [name, [axis]]] of Object.entries({ xAxis, yAxis }).entries()) {
    const isWhole = dataZoom[place].end - dataZoom[place].start > 99.9;
    if (axis.type === "value") changed[name] = { axisLabel: { showMinLabel: isWhole, showMaxLabel: isWhole } };
    if (axis.type !== "log") continue;
    const model = chart.getModel().getComponent(name, 0).axis.scale.getExtent();
    const [low, high] = model[0] > 0 && model[1] > model[0] ? model : [axis.min, axis.max];
    changed[name] = marked(axis, low, high);
  }
  if (Object.keys(changed).length) chart.setOption(changed, { lazyUpdate: true });
}

/** The interval on an axis that holds the values from `low` to `high`; those of a parameter are places in its list. */
function interval(listed, [low, high]) {
  if (!listed) return [low, high];
  const places = listed.flatMap((value, place) => (value >= low && value <= high ? [place] : []));
  return [Math.min(...places) - 0.3, Math.max(...places) + 0.3];
}

/** Brushed axes select the trials of the table below and stand in the address; the address brushes the axes. */
function brush(chart, values, options) {
  const shown = new Map(); // what the address brushed: the event of that selects nothing
  for (const [name, bounds] of Object.entries(options().selection)) {
    const intervals = [interval(values[name], bounds)];
    selection.set(name, bounds);
    shown.set(name, String(intervals));
    chart.dispatchAction({ type: "axisAreaSelect", parallelAxisId: name, intervals });
  }
  chart.on("axisareaselected", ({ parallelAxisId: name, intervals }) => {
    if (shown.get(name) === String(intervals)) return;
    shown.delete(name);
    if (!intervals?.length) selection.delete(name);
    else selection.set(name, bounds(options().values[name], intervals[0]));
    selectSoon();
  });
}

function bounds(listed, [from, to]) {
  const [low, high] = from < to ? [from, to] : [to, from];
  if (!listed) return [low, high].map((value) => Number(value.toPrecision(4)));
  const inside = listed.filter((_, place) => place >= low && place <= high);
  return inside.length ? [inside[0], inside.at(-1)] : [0, -1];
}

/** A rectangle over a chart selects what it holds, by the columns that the axes stand for. */
function selectArea({ selects, values }, ranges) {
  selects.forEach((name, place) => {
    const [low, high] = bounds(values?.[name], ranges[place]);
    if (name !== "spent") selection.set(name, name === "trial" ? [Math.ceil(low), Math.floor(high)] : [low, high]);
    else {
      const spent = columns.values.get("spent");
      const inside = columns.values.get("trial").filter((_, row) => spent[row] >= low && spent[row] <= high);
      selection.set("trial", inside.length ? [inside[0], inside.at(-1)] : [0, -1]);
    }
  });
  selectSoon();
}

let waiting;
function selectSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(select, PAUSE_MS);
}

const plain = (value) => value.toLocaleString("en", { useGrouping: false, maximumFractionDigits: 12 });

/** The selection in the address of the page, of its sections and in its forms. */
function select() {
  const text = [...selection].map(([name, [low, high]]) => `${name}=${plain(low)}..${plain(high)}`).join(",");
  readdress({ select: text, page: "" });
  for (const input of document.querySelectorAll("form input[name=select]")) input.value = text;
  for (const section of document.querySelectorAll("[data-follows-address=now]")) htmx.trigger(section, "refresh", {}, false);
}

/** Changes parts of the query of the page and of the sections that follow it. */
function readdress(changed) {
  const change = (text) => {
    const address = new URL(text, location);
    for (const [name, value] of Object.entries(changed)) {
      if (value) address.searchParams.set(name, value); else address.searchParams.delete(name);
    }
    return address.pathname + address.search;
  };
  history.replaceState(null, "", change(location) + location.hash);
  for (const section of document.querySelectorAll("[data-follows-address]")) {
    section.setAttribute("hx-get", change(section.getAttribute("hx-get")));
  }
}

const axesForm = () => document.querySelector("form[data-free]");

/** What the form says of the free chart's axes, where somebody changed it; else what the server said. */
const chosenAxes = () => (axesForm()?.dataset.isChanged ? Object.fromEntries(["x", "y", "colour"].map((name) => [name, axesForm().elements[name].value])) : null);

/** Another axis or colour draws the free chart anew at once; other parameters draw slice and heat map. */
document.addEventListener("change", async ({ target }) => {
  const { form } = target;
  if (form?.matches("[data-free]")) {
    form.dataset.isChanged = "yes";
    readdress(chosenAxes());
    await ready();
    draw(document.querySelector("#free .plot"), true);
  } else if (form?.matches("[data-drawn]")) {
    readdress({ [target.name]: target.value });
    htmx.trigger(study(), "refresh", {}, false);
  }
});

/** The columns that the page's charts draw, fetched as far as the page knows of trials. */
async function load() {
  const section = study();
  if (!section) return;
  columns ??= new Columns(section.dataset.columns);
  const text = document.getElementById("free-options")?.textContent;
  const said = text && JSON.parse(text);
  await columns.fetched(Number(section.dataset.last), said?.free ? named({ ...said, free: chosenAxes() ?? said.free }) : []);
}

/** All that drawing needs: whoever is quick chooses an axis before it has come. */
async function ready() {
  [echarts] = await Promise.all([echarts ?? library(), load()]);
}

const rest = () => new Promise((done) => { (window.requestIdleCallback ?? setTimeout)(done, { timeout: PAUSE_MS }); });

function isInView(plot) {
  const { top, bottom } = plot.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

/** Draws all charts, those in view first, and between two of them lets the page answer its reader. */
async function drawAll(isForced) {
  await ready();
  const waiting = new Set(document.querySelectorAll("[data-chart]"));
  while (waiting.size) {
    const plots = [...waiting];
    const isShort = (plot) => plot.dataset.chart !== "parallel-options"; // a line for each trial takes longest
    const plot = plots.find(isInView) ?? plots.find(isShort) ?? plots[0];
    waiting.delete(plot);
    if (plot.isConnected) draw(plot, isForced);
    await rest();
  }
  for (const [plot, { chart }] of drawn) {
    if (plot.isConnected) continue;
    resizes.unobserve(plot);
    chart.dispose();
    drawn.delete(plot);
  }
}

document.addEventListener("htmx:after:swap", () => drawAll(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
drawAll(true);
