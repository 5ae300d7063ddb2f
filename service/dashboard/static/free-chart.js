// Any two columns of a study's trials against each other, in classes of colour by a third.

import { digits, kernelTime, pointsOf } from "./columns.js";

const CLASSES = 6;
const MOST_VALUES = 8;

/** The columns that the chart shows beyond those that are always there. */
export const named = ({ free, values }) => Object.values(free).filter((name) => !["trial", "spent", "time"].includes(name) && !values[name]);

/** The chart's options, with its points. `ramp(share)`: the colour at that place from 0 to 1. */
export function freeChart({ free, axes, frame, dots, levels, levels_across, values }, columns, ramp) {
  const { x, y, colour } = free;
  const dims = [...new Set([x, y, colour])];
  const all = pointsOf({ of: "measured", dims }, columns, values).map((point) => [point[0], point[dims.indexOf(y)], point[dims.indexOf(colour)], point.at(-1)]);
  const classes = classesOf(all.map((point) => point[2]), values[colour], colour === "time" ? kernelTime : digits);
  const series = classes.map(({ says, holds }, place) => ({
    ...dots,
    name: `${colour} ${says}`,
    itemStyle: { color: ramp(classes.length > 1 ? place / (classes.length - 1) : 1), opacity: 0.75 },
    data: all.filter((point) => holds(point[2])).map(([left, up, , row]) => [left, up, row]),
  }));
  const lines = [...(y === "time" ? levels : []), ...(x === "time" ? levels_across : [])];
  return {
    ...frame,
    xAxis: { ...frame.xAxis, ...axes[x] },
    yAxis: { ...frame.yAxis, ...axes[y], nameLocation: "end" },
    series: [...series, ...lines],
    selects: [x, y],
    values,
  };
}

function classesOf(found, listed, text) {
  const distinct = [...new Set(found)].sort((a, b) => a - b);
  const word = (value) => (listed ? String(listed[value]) : Number.isInteger(value) && text === digits ? String(value) : text(value));
  if (distinct.length <= MOST_VALUES) return distinct.map((value) => ({ says: word(value), holds: (other) => other === value }));
  const sorted = Float64Array.from(found).sort();
  const bounds = Array.from({ length: CLASSES + 1 }, (_, place) => sorted[Math.min(sorted.length - 1, Math.floor((place * sorted.length) / CLASSES))]);
  const edges = [...new Set(bounds)];
  return edges.slice(1).map((high, place) => {
    const low = edges[place];
    const isLast = place === edges.length - 2;
    return { says: `${word(low)} to ${word(high)}`, holds: (value) => value >= low && (value < high || (isLast && value === high)) };
  });
}
