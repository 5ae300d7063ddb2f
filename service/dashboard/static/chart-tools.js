// The buttons under a chart: zoom, select, its numbers as a table or CSV, the picture as PNG or SVG.

const SHOWN_ROWS = 200;

/** The rows behind a chart: its series, then the values of each point by the names of its axes. */
export function rowsOf({ series, xAxis, yAxis, parallelAxis, named }) {
  const axes = parallelAxis ?? [xAxis, yAxis];
  const names = named ?? axes.map((axis) => axis.name ?? axis.id ?? "");
  const read = series.filter(({ silent }) => !silent); // what is silent accompanies other points
  const rows = read.flatMap(({ name, data, type }) =>
    (data ?? []).map((item) => {
      const value = type === "lines" ? item.coords.flat() : (item.value ?? item);
      return [name, ...names.map((_, place) => shown(value[place], axes[place]))];
    }));
  for (const { name, markLine } of series) {
    for (const at of markLine?.data ?? []) rows.push([name, shown(at.xAxis, xAxis), shown(at.yAxis, yAxis)]);
  }
  return [["series", ...names], ...rows];
}

/** What the axis says at a value: a category's name, a time in the unit of its title. */
function shown(value, axis) {
  if (typeof value !== "number") return value ?? "";
  return axis?.type === "category" ? axis.data[value] : inUnit(value, axis);
}

/** A value of an axis in the unit that its title names; columns hold five digits. */
export const inUnit = (value, axis) => (axis?.unit_ms ? Number((value / axis.unit_ms).toPrecision(5)) : value);

const cell = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);

function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function table(box, options) {
  const [head, ...rows] = rowsOf(options);
  const made = document.createElement("table");
  const line = (parent, values, tag) => {
    const row = parent.insertRow();
    for (const value of values) row.append(Object.assign(document.createElement(tag), { textContent: value }));
    return row;
  };
  for (const th of line(made.createTHead(), head, "th").cells) th.scope = "col";
  const body = made.createTBody();
  for (const row of rows.slice(0, SHOWN_ROWS)) line(body, row, "td");
  const more = document.createElement("p");
  if (rows.length > SHOWN_ROWS) more.textContent = `The first ${SHOWN_ROWS} of ${rows.length.toLocaleString("en")} rows; CSV has all.`;
  box.replaceChildren(made, more);
}

/**
 * The chart as it is in view, drawn anew at once: a copy of its canvas in another size leaves out the points that were
 * drawn past the library's list of shapes.
 */
function picture(echarts, chart, options, theme, kind) {
  const size = { width: chart.getWidth(), height: chart.getHeight() };
  const drawn = kind === "svg"
    ? echarts.init(null, theme, { renderer: "svg", ssr: true, ...size })
    : echarts.init(document.createElement("div"), theme, { devicePixelRatio: 2, ...size });
  const { dataZoom, xAxis, yAxis } = chart.getOption();
  const inView = dataZoom ? { dataZoom, xAxis, yAxis } : {};
  drawn.setOption({ ...options, ...inView, toolbox: undefined, backgroundColor: theme.ground, series: options.series.map((one) => ({ ...one, progressive: 0 })) });
  for (const axis of chart.getModel().queryComponents({ mainType: "parallelAxis" })) {
    drawn.dispatchAction({ type: "axisAreaSelect", parallelAxisId: axis.id, intervals: axis.activeIntervals });
  }
  drawn.getZr().flush();
  const content = kind === "svg" ? drawn.renderToSVGString() : bytesOf(drawn.getDataURL({ type: "png", pixelRatio: 2 }));
  drawn.dispose();
  return content;
}

const bytesOf = (address) => Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));

/** Shows the buttons of a chart and makes them work. `current()`: its chart, options and theme as they are now. */
export function equip(plot, echarts, current) {
  const figure = plot.closest("figure");
  const tools = figure.querySelector(".tools");
  const box = figure.querySelector(".behind");
  const button = (name) => tools.querySelector(`[data-tool=${name}]`);
  const press = (name, isOn) => {
    for (const other of ["zoom", "select"]) button(other).setAttribute("aria-pressed", String(other === name && isOn));
    const brushOption = { brushType: isOn ? "rect" : false, brushMode: "single" };
    const taken = name === "zoom" ? { key: "dataZoomSelect", dataZoomSelectActive: isOn } : { key: "brush", brushOption };
    current().chart.dispatchAction({ type: "takeGlobalCursor", ...taken }); // takes it from the other as well
  };
  const acts = {
    zoom: (pressed) => press("zoom", pressed.ariaPressed !== "true"),
    select: (pressed) => press("select", pressed.ariaPressed !== "true"),
    reset() {
      for (const index of [0, 1]) current().chart.dispatchAction({ type: "dataZoom", dataZoomIndex: index, start: 0, end: 100 });
      press("zoom", false);
    },
    table(pressed) {
      box.hidden = !box.hidden;
      pressed.setAttribute("aria-expanded", String(!box.hidden));
      if (!box.hidden) table(box, current().options);
    },
    csv: () => save(`${figure.id}.csv`, rowsOf(current().options).map((row) => row.map(cell).join(",")).join("\r\n"), "text/csv"),
    png: () => save(`${figure.id}.png`, picture(echarts, current().chart, current().options, current().theme, "png"), "image/png"),
    svg: () => save(`${figure.id}.svg`, picture(echarts, current().chart, current().options, current().theme, "svg"), "image/svg+xml"),
  };
  if (!tools.dataset.isEquipped) {
    tools.dataset.isEquipped = "yes";
    tools.addEventListener("click", ({ target }) => acts[target.dataset.tool]?.(target));
  }
  const { options } = current();
  button("zoom").hidden = button("reset").hidden = !options.dataZoom;
  button("select").hidden = !options.brush;
  tools.hidden = false;
  if (!box.hidden) table(box, options);
}
