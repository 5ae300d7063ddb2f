// Drawing a digit, and what the network makes of it while it grows. The answer comes from the API: POST /v1/digits.

import { HERE, chosen, follow, silence, tell } from "./digit-places.js";

const ASK_EVERY_MS = 120, AGAIN_MS = 1000, MOST_AGAIN = 15, STEPS = 28, SURE = 0.6;
const canvas = document.getElementById("drawing"), pen = canvas.getContext("2d");
const answer = document.getElementById("answer"), cells = document.getElementById("cells");
const samples = Number(canvas.dataset.samples);
const small = Object.assign(document.createElement("canvas"), { width: samples, height: samples });
const reduced = small.getContext("2d", { willReadFrequently: true });

let strokes = [], asking = null, askAgain = false, again = 0; // asking: how to stop the question that is on its way
const key = { x: 0.5, y: 0.2, isDown: false, isShown: false };

/** All strokes and the keyboard's pen, in the colours of the page. */
function draw() {
  pen.clearRect(0, 0, canvas.width, canvas.height);
  trace(pen, canvas.width);
  if (!key.isShown) return;
  pen.beginPath();
  pen.arc(key.x * canvas.width, key.y * canvas.height, 14, 0, 7);
  pen.lineWidth = 4;
  pen.strokeStyle = getComputedStyle(answer).color;
  pen.setLineDash(key.isDown ? [] : [6, 6]);
  pen.stroke();
  pen.setLineDash([]);
}

function trace(context, side) {
  Object.assign(context, { lineCap: "round", lineJoin: "round", lineWidth: side * 0.075 });
  context.strokeStyle = getComputedStyle(canvas).color;
  for (const points of strokes) {
    context.beginPath();
    context.moveTo(points[0].x * side - 0.1, points[0].y * side); // a line without length would not be drawn
    for (const { x, y } of points) context.lineTo(x * side, y * side);
    context.stroke();
  }
}

/** Rows of 0 to 255: how much of each sample is ink, whatever its colour. */
function pixels() {
  reduced.clearRect(0, 0, samples, samples);
  trace(reduced, samples);
  const { data } = reduced.getImageData(0, 0, samples, samples);
  const row = (y) => Array.from({ length: samples }, (_, x) => data[4 * (y * samples + x) + 3]);
  return Array.from({ length: samples }, (_, y) => row(y));
}

/** Asks for the newest state of the drawing; while an answer is on its way, once more after it. */
async function ask() {
  if (asking) { askAgain = true; return; }
  const mine = asking = new AbortController(), on = chosen();
  let pauseMs = ASK_EVERY_MS;
  try {
    const said = await fetch("/v1/digits", {
      method: "POST", headers: { "Content-Type": "application/json" }, signal: mine.signal,
      body: JSON.stringify({ pixels: pixels(), on }),
    });
    const found = await said.json();
    // A device that prepares the network, or is in the middle of a trial: it answers soon.
    if (said.status >= 503 && on !== HERE && (again += 1) <= MOST_AGAIN) { askAgain = true; pauseMs = AGAIN_MS; }
    if (!said.ok) throw new Error(found.detail ?? `status ${said.status}`);
    again = 0;
    if (strokes.length) show(found); // else it was cleared meanwhile
  } catch (error) {
    if (error.name !== "AbortError") { answer.textContent = `No answer: ${error.message}`; silence(); }
  }
  if (!mine.signal.aborted) await new Promise((resolve) => setTimeout(resolve, pauseMs));
  if (asking === mine) asking = null;
  if (!asking && askAgain) { askAgain = false; if (strokes.length) ask(); }
}

/** Another place is to answer: what the last one was asked is no matter any more. */
function moved() {
  asking?.abort();
  asking = null;
  again = 0;
  if (strokes.length) ask();
}

function show({ digit, probabilities, cells: counts, computed }) {
  tell(computed);
  const percent = (share) => (share > 0.9995 ? "over 99.9 %" : `${(100 * share).toFixed(1)} %`);
  const word = `${probabilities[digit] < SURE ? "Perhaps" : "It is"} ${digit}, ${percent(probabilities[digit])}`;
  if (answer.textContent !== word) answer.textContent = word;
  probabilities.forEach((share, place) => line(place, share, percent(share), place === digit));
  const picture = cells.getContext("2d"), image = picture.createImageData(8, 8);
  counts.flat().forEach((count, place) => image.data.set([127, 127, 127, Math.round(count * 255 / 16)], 4 * place));
  picture.putImageData(image, 0, 0);
  cells.setAttribute("aria-label", `Rows of ink, 0 to 16: ${counts.map((row) => row.join(" ")).join("; ")}`);
}

function line(place, share, text, isBest) {
  const row = document.getElementById(`digit-${place}`);
  row.querySelector("meter").value = share;
  row.querySelector("span").textContent = text;
  row.classList.toggle("best", isBest);
}

function changed() { again = 0; draw(); ask(); }

function clear() {
  strokes = [];
  askAgain = key.isDown = false;
  draw();
  answer.textContent = answer.dataset.empty;
  silence();
  for (let place = 0; place < 10; place += 1) line(place, 0, "–", false);
  cells.getContext("2d").clearRect(0, 0, 8, 8);
  cells.setAttribute("aria-label", "Nothing yet");
}

const place = (event) => {
  const box = canvas.getBoundingClientRect();
  const within = (value) => Math.min(1, Math.max(0, value));
  return { x: within((event.clientX - box.left) / box.width), y: within((event.clientY - box.top) / box.height) };
};

canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || !event.isPrimary) return;
  canvas.setPointerCapture(event.pointerId);
  key.isShown = key.isDown = false;
  strokes.push([place(event)]);
  changed();
});
canvas.addEventListener("pointermove", (event) => {
  if (!canvas.hasPointerCapture(event.pointerId)) return;
  const between = event.getCoalescedEvents?.() ?? [];
  strokes.at(-1).push(...(between.length ? between : [event]).map(place));
  changed();
});

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const move = MOVES[event.key], tell = document.getElementById("pen");
  if (move) {
    key.x = Math.min(1, Math.max(0, key.x + move[0] / STEPS));
    key.y = Math.min(1, Math.max(0, key.y + move[1] / STEPS));
    if (key.isDown) strokes.at(-1).push({ x: key.x, y: key.y });
  } else if (event.key === " ") {
    key.isDown = !key.isDown;
    if (key.isDown) strokes.push([{ x: key.x, y: key.y }]);
    tell.textContent = key.isDown ? "Pen down" : "Pen up";
  } else if (event.key === "Delete" || event.key === "Backspace") {
    clear();
    tell.textContent = "Cleared";
  } else return;
  event.preventDefault();
  key.isShown = true;
  if (strokes.length) changed(); else draw();
});
document.getElementById("clear").addEventListener("click", clear);
follow(moved);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
