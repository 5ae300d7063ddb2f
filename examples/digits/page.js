// Draws a digit and asks POST /digits for it while it grows.

const SIDE = 56, ASK_EVERY_MS = 120, STEPS = 28, SURE = 0.6, EMPTY = "Nothing is drawn yet.";
const [canvas, answer, cells, rows, computed] =
  ["drawing", "answer", "cells", "probabilities", "computed"].map((id) => document.getElementById(id));
const small = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
const reduced = small.getContext("2d", { willReadFrequently: true });
const meters = Array.from({ length: 10 }, (_, digit) => {
  const row = rows.insertRow(), head = document.createElement("th"), meter = document.createElement("meter");
  head.scope = "row";
  head.textContent = digit;
  meter.setAttribute("aria-hidden", "true");
  row.append(head);
  const cell = row.insertCell(), text = document.createElement("span");
  cell.append(meter, " ", text);
  return { row, meter, text };
});
const key = { x: 0.5, y: 0.2, isDown: false, isShown: false };
let strokes = [], isAsking = false, askAgain = false;

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

function draw() {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  trace(pen, canvas.width);
  if (!key.isShown) return;
  pen.beginPath();
  pen.arc(key.x * canvas.width, key.y * canvas.height, 14, 0, 7);
  Object.assign(pen, { lineWidth: 4, strokeStyle: getComputedStyle(canvas).color });
  pen.setLineDash(key.isDown ? [] : [6, 6]);
  pen.stroke();
  pen.setLineDash([]);
}

/** Rows of 0 to 255: how much of each sample is ink, whatever its colour. */
function pixels() {
  reduced.clearRect(0, 0, SIDE, SIDE);
  trace(reduced, SIDE);
  const { data } = reduced.getImageData(0, 0, SIDE, SIDE);
  return Array.from({ length: SIDE }, (_, y) => Array.from({ length: SIDE }, (_, x) => data[4 * (y * SIDE + x) + 3]));
}

/** Asks for the newest state of the drawing; while an answer is on its way, once more after it. */
async function ask() {
  if (isAsking) { askAgain = true; return; }
  isAsking = true;
  askAgain = false;
  try {
    const said = await fetch("/digits", { method: "POST", body: JSON.stringify({ pixels: pixels() }) });
    const found = await said.json();
    if (!said.ok) throw new Error(found.detail);
    if (strokes.length) show(found); // else it was cleared meanwhile
  } catch (error) {
    if (strokes.length) say(`Failed: ${error.message}`, "failed");
  }
  await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
  isAsking = false;
  if (askAgain && strokes.length) ask();
}

/** A sentence in place of an answer: no probability of an earlier one may stay beside it. */
function say(sentence, kind = "") {
  answer.textContent = sentence;
  answer.className = kind;
  computed.textContent = "";
  cells.getContext("2d").clearRect(0, 0, 8, 8);
  for (const { row, meter, text } of meters) {
    meter.value = 0;
    text.textContent = "–";
    row.className = "";
  }
}

function show(found) {
  const percent = (share) => (share > 0.9995 ? "over 99.9 %" : `${(100 * share).toFixed(1)} %`);
  const share = found.probabilities[found.digit];
  const [[, second]] = found.probabilities.map((of, digit) => [of, digit]).filter(([, digit]) => digit !== found.digit).sort(([a], [b]) => b - a);
  const sure = `${found.digit}, ${percent(share)}`;
  answer.textContent = share < SURE ? `Not recognised: ${sure}, or ${second}, ${percent(found.probabilities[second])}` : `It is ${sure}`;
  answer.className = "";
  computed.textContent = found.computed;
  meters.forEach(({ row, meter, text }, digit) => {
    meter.value = found.probabilities[digit];
    text.textContent = percent(found.probabilities[digit]);
    row.className = digit === found.digit ? "best" : "";
  });
  const picture = cells.getContext("2d"), image = picture.createImageData(8, 8);
  found.cells.flat().forEach((count, place) => image.data.set([127, 127, 127, Math.round(count * 255 / 16)], 4 * place));
  picture.putImageData(image, 0, 0);
}

function changed() { draw(); if (strokes.length) ask(); }
function clear() { strokes = []; key.isDown = false; draw(); say(EMPTY); }

function place(event) {
  const box = canvas.getBoundingClientRect(), within = (value) => Math.min(1, Math.max(0, value));
  return { x: within((event.clientX - box.left) / box.width), y: within((event.clientY - box.top) / box.height) };
}

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
  const move = MOVES[event.key];
  if (move) {
    key.x = Math.min(1, Math.max(0, key.x + move[0] / STEPS));
    key.y = Math.min(1, Math.max(0, key.y + move[1] / STEPS));
    if (key.isDown) strokes.at(-1).push({ x: key.x, y: key.y });
  } else if (event.key === " ") {
    key.isDown = !key.isDown;
    if (key.isDown) strokes.push([{ x: key.x, y: key.y }]);
  } else if (event.key === "Delete" || event.key === "Backspace") clear();
  else return;
  event.preventDefault();
  key.isShown = true;
  changed();
});
document.getElementById("clear").addEventListener("click", clear);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
say(EMPTY);
