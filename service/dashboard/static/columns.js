// The trials of a study, column by column: fetched as packed bytes (charts/packed.py), those added since after them.

export class Columns {
  #address;
  #named = new Set();
  #waiting = Promise.resolve();
  values = new Map();
  parameters = new Set();
  last = -1;

  constructor(address) { this.#address = address; }

  get rows() { return this.values.get("trial")?.length ?? 0; }

  /** Fetches what is missing up to the trial of that number, with these columns beside the usual ones. */
  fetched(last, named = []) {
    this.#waiting = this.#waiting.catch(() => undefined).then(() => this.#fetch(last, named));
    return this.#waiting;
  }

  async #fetch(last, named) {
    if (named.some((name) => !this.#named.has(name))) {
      named.forEach((name) => this.#named.add(name));
      this.values.clear();
      this.last = -1;
    }
    if (last <= this.last) return;
    const wanted = this.#named.size ? `&with=${[...this.#named].join(",")}` : "";
    const answer = await fetch(`${this.#address}&after=${this.last}${wanted}`);
    if (!answer.ok) throw new Error(`the trials' columns: status ${answer.status}`);
    this.#append(await answer.arrayBuffer());
  }

  #append(bytes) {
    const headed = new DataView(bytes).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, headed)));
    let offset = 4 + headed;
    const { rows } = header;
    const before = this.rows;
    for (const column of header.columns) {
      const { name, kind } = column;
      const own = this.values.get(name) ?? new Array(before).fill(null); // a parameter that no earlier trial had
      const read = READ[kind](bytes, offset, rows, column);
      this.values.set(name, own.concat(read));
      if (column.is_parameter) this.parameters.add(name);
      offset += Math.ceil((rows * SIZE[kind]) / 4) * 4;
    }
    if (rows) this.last = this.values.get("trial").at(-1);
  }

  /** The rows of one outcome that have every one of these columns. */
  having(outcome, names) {
    const outcomes = this.values.get("outcome") ?? [];
    const needed = names.map((name) => this.values.get(name)).filter(Boolean);
    const found = [];
    for (let row = 0; row < this.rows; row += 1) {
      if (outcomes[row] === outcome && needed.every((column) => column[row] !== null)) found.push(row);
    }
    return found;
  }
}

const SIZE = { rising: 4, number: 4, place1: 1, place2: 2 };

const placed = (places, { values }) => Array.from(places, (place) => values[place]);

const READ = {
  rising(bytes, offset, rows, { step }) {
    let sum = 0;
    return Array.from(new Uint32Array(bytes, offset, rows), (more) => (sum += more) * step);
  },
  number: (bytes, offset, rows) => Array.from(new Float32Array(bytes, offset, rows), (value) => (Number.isNaN(value) ? null : value)),
  place1: (bytes, offset, rows, column) => placed(new Uint8Array(bytes, offset, rows), column),
  place2: (bytes, offset, rows, column) => placed(new Uint16Array(bytes, offset, rows), column),
};

/** The points of a series that names columns: their values in order, a parameter's as place on its axis, then the row. */
export function pointsOf({ of, dims, part, share }, columns, listed) {
  let rows = columns.having(of, dims.filter((name) => typeof name === "string"));
  if (part) rows = partOf(rows, columns.values.get("time"), part, share);
  const readers = dims.map((name) => reader(name, columns, listed));
  return rows.map((row) => [...readers.map((read) => read(row)), row]);
}

function partOf(rows, times, part, share) {
  const ranked = [...rows].sort((a, b) => times[b] - times[a]);
  const fast = Math.max(1, Math.ceil(ranked.length * share));
  return part === "fastest" ? ranked.slice(-fast) : ranked.slice(0, -fast);
}

function reader(name, columns, listed) {
  if (typeof name === "number") return () => name;
  const column = columns.values.get(name) ?? [];
  if (!listed?.[name]) return (row) => column[row];
  const places = new Map(listed[name].map((value, place) => [value, place]));
  return (row) => places.get(column[row]);
}

/** Three significant digits, without an exponent. */
export const digits = (value) => value.toLocaleString("en", value >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3, minimumSignificantDigits: 3, maximumFractionDigits: 12 });

/** A time in the unit that suits it. */
export function kernelTime(value_ms) {
  const [size, unit] = [[1e3, "s"], [1, "ms"], [1e-3, "µs"]].find(([least]) => value_ms >= 0.9995 * least) ?? [1e-6, "ns"];
  return `${digits(value_ms / size)} ${unit}`;
}

/** A trial in a few lines: the text of its tooltip. */
export function says(row, columns) {
  const get = (name) => columns.values.get(name)?.[row] ?? null;
  const time = get("time");
  const lines = [`trial ${get("trial")}: ${time === null ? get("outcome").replaceAll("_", " ") : kernelTime(time)}`, get("variant")];
  const values = [...columns.parameters].flatMap((name) => (get(name) === null ? [] : [`${name}=${get(name)}`]));
  for (let start = 0; start < values.length; start += 4) lines.push(values.slice(start, start + 4).join(" "));
  return lines.join("\n");
}
