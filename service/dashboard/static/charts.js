// Draws the charts of a page. Their options are data that the server made; a text that begins with `--` names a colour
// of the style sheet. Tooltips are drawn on the canvas, because the content policy admits no inline style.

const echarts = window.echarts;
const PAUSE_MS = 250;

const drawn = new WeakMap();
const colours = () => getComputedStyle(document.documentElement);

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

function theme(style) {
  const said = {
    textStyle: { fontFamily: "system-ui, sans-serif" },
    legend: { textStyle: { color: "--text" }, inactiveColor: "--quiet", pageTextStyle: { color: "--quiet" } },
    tooltip: { renderMode: "richText", confine: true, backgroundColor: "--raised", borderColor: "--edge", textStyle: { color: "--text", fontSize: 12 } },
    parallel: { parallelAxisDefault: AXIS },
  };
  for (const kind of ["category", "value", "log", "time"]) said[`${kind}Axis`] = AXIS;
  return coloured(said, style);
}

function draw(plot, isForced) {
  const text = document.getElementById(plot.dataset.chart).textContent;
  if (drawn.get(plot) === text && !isForced) return;
  drawn.set(plot, text);
  const options = JSON.parse(text);
  const style = colours();
  echarts.getInstanceByDom(plot)?.dispose();
  const chart = echarts.init(plot, theme(style), { renderer: "canvas" });
  const { selection, values, ...said } = coloured(options, style);
  for (const axis of [said.xAxis, said.yAxis, ...(said.parallelAxis ?? [])]) {
    if (axis?.type === "log") axis.axisLabel = { ...axis.axisLabel, formatter: (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 9 }) };
  }
  chart.setOption(said);
  chart.on("click", ({ data }) => { if (data?.href) location.assign(data.href); });
  if (selection) brush(chart, selection, values);
}

/** The interval on an axis that holds the values from `low` to `high`; those of a parameter are places in its list. */
function interval(listed, [low, high]) {
  if (!listed) return [low, high];
  const places = listed.flatMap((value, place) => (value >= low && value <= high ? [place] : []));
  return [Math.min(...places) - 0.3, Math.max(...places) + 0.3];
}

/** Brushed axes select the trials of the table below and stand in the address; the address brushes the axes. */
function brush(chart, chosen, values) {
  const selection = new Map(Object.entries(chosen));
  for (const [name, bounds] of selection) {
    chart.dispatchAction({ type: "axisAreaSelect", parallelAxisId: name, intervals: [interval(values[name], bounds)] });
  }
  let waiting;
  chart.on("axisareaselected", ({ parallelAxisId: name, intervals }) => {
    if (!intervals?.length) selection.delete(name);
    else selection.set(name, bounds(values[name], intervals[0]));
    clearTimeout(waiting);
    waiting = setTimeout(() => select(selection), PAUSE_MS);
  });
}

function bounds(listed, [from, to]) {
  const [low, high] = from < to ? [from, to] : [to, from];
  if (!listed) return [Number(low.toPrecision(4)), Number(high.toPrecision(4))];
  const inside = listed.filter((_, place) => place >= low && place <= high);
  return inside.length ? [inside[0], inside.at(-1)] : [0, -1];
}

function select(selection) {
  const address = new URL(location.href);
  const text = [...selection].map(([name, [low, high]]) => `${name}=${low}..${high}`).join(",");
  if (text) address.searchParams.set("select", text); else address.searchParams.delete("select");
  address.searchParams.delete("page");
  history.replaceState(null, "", address);
  for (const section of document.querySelectorAll("[data-follows-address]")) {
    section.setAttribute("hx-get", address.pathname + address.search);
    if (section.dataset.followsAddress === "now") htmx.trigger(section, "refresh", {}, false);
  }
}

const drawAll = (isForced) => document.querySelectorAll("[data-chart]").forEach((plot) => draw(plot, isForced));

document.addEventListener("htmx:after:swap", () => drawAll(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
new ResizeObserver(() => {
  for (const plot of document.querySelectorAll("[data-chart]")) echarts.getInstanceByDom(plot)?.resize();
}).observe(document.body);
drawAll(true);
