// Where a drawing is computed: this server, or a device whose worker is there now (GET /v1/digits/places).

const LOOK_EVERY_MS = 10_000;
export const HERE = "api";
const choice = document.getElementById("place"), where = document.getElementById("where");
const layers = document.getElementById("layers");
const hereSaid = choice.options[0].text;
let wanted = new URLSearchParams(location.search).get("on") ?? HERE; // a device that is chosen, there or not yet

/** What `on` is set to. */
export const chosen = () => choice.value;

/** Calls `act` when another place is chosen, by a person or because the chosen one is gone. */
export function follow(act) {
  choice.addEventListener("change", () => {
    wanted = choice.value;
    const address = new URL(location.href);
    if (wanted === HERE) address.searchParams.delete("on"); else address.searchParams.set("on", wanted);
    history.replaceState(history.state, "", address);
    act();
  });
  const look = async () => {
    if (document.hidden || document.activeElement === choice) return; // an open list must not change
    const before = chosen();
    await offer();
    if (chosen() !== before) act();
  };
  look();
  setInterval(look, LOOK_EVERY_MS);
}

async function offer() {
  let places;
  try {
    const said = await fetch("/v1/digits/places");
    if (!said.ok) return;
    places = (await said.json()).items;
  } catch { return; } // what was there may still be; asking tells
  const option = (value, text) => Object.assign(document.createElement("option"), { value, text });
  const named = ({ on, name, host, ordinal, measuring }) =>
    option(on, `${name}, ${host} ${ordinal}${measuring ? ", runs a job" : ""}`);
  const there = [option(HERE, hereSaid), ...places.map(named)];
  const said = (options) => JSON.stringify(Array.from(options, ({ value, text }) => [value, text]));
  if (said(there) !== said(choice.options)) choice.replaceChildren(...there);
  choice.value = places.some(({ on }) => on === wanted) ? wanted : HERE;
}

/** Says who answered, with which kernels, and how long that took. */
export function tell({ on, host, device_model, layers: used, kernels_us, pass_us, total_ms }) {
  const ms = (value) => `${value.toPrecision(3)} ms`;
  const kernels = kernels_us === null ? "" : `${used.length} kernels in ${kernels_us.toPrecision(3)} µs, `;
  const who = on === HERE ? "NumPy in the server's process" : `${device_model} on ${host}`;
  where.textContent = `${who}: ${kernels}a pass in ${ms(pass_us / 1000)}, the answer in ${ms(total_ms)}.`;
  const words = used.map(({ kernel, shape, variant, match }) =>
    `${kernel} ${Object.entries(shape).map(([axis, size]) => `${axis}=${size}`).join(" ")}: ${variant}, ${match}`);
  if (words.join() === Array.from(layers.children, (line) => line.textContent).join()) return;
  layers.replaceChildren(...words.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

/** Nobody answered. */
export function silence() {
  where.textContent = "";
  layers.replaceChildren();
}
