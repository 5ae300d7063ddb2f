// Buttons with `data-post` call the API; the form of a new schedule is sent as JSON, and refusals go beside their fields.

import { refresh } from "/static/live.js";

const tell = (text) => { document.getElementById("action-result").textContent = text; };

/** Status and body of a call; a server that does not answer reads like a refusal. */
async function call(method, address, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  try {
    const answer = await fetch(address, { method, headers, body: JSON.stringify(body) });
    const text = await answer.text();
    return { ok: answer.ok, body: text ? JSON.parse(text) : {} };
  } catch {
    return { ok: false, body: { detail: "The server did not answer; nothing is known to have changed." } };
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button || (button.dataset.confirm && !confirm(button.dataset.confirm))) return;
  button.disabled = true;
  const { ok, body } = await call(button.dataset.method || "POST", button.dataset.post);
  button.disabled = false;
  await refresh(button.dataset.refresh);
  tell(ok ? button.dataset.done || "" : body.detail);
});

/** `linear m=256,n=100,k=784 float32 activation=relu`: whole numbers are axes, other pairs are options. */
function problem(line) {
  const [kernel, ...words] = line.trim().split(/\s+/);
  const made = { kernel, shape: {}, options: {} };
  for (const pair of words.flatMap((word) => word.split(",")).filter(Boolean)) {
    const [name, value] = pair.split("=", 2);
    if (value === undefined) made.dtype = name;
    else if (/^-?\d+$/.test(value)) made.shape[name] = Number(value);
    else made.options[name] = { true: true, false: false }[value] ?? value;
  }
  return made;
}

function request(form) {
  const { name, cron, time_zone, device_model, overlap } = Object.fromEntries(new FormData(form));
  const budget = {};
  for (const field of ["trials", "seconds"]) if (form[field].value) budget[field] = Number(form[field].value);
  const problems = form.problems.value.split("\n").filter((line) => line.trim()).map(problem);
  return { name, cron, time_zone, problems, device_model, budget, overlap, priority: Number(form.priority.value) };
}

/** The field that a JSON pointer is about: the one that holds it, else the first that lies inside it. */
function fieldAt(form, pointer) {
  const fields = [...form.querySelectorAll("[data-pointer]")];
  const lies = (inner, outer) => inner === outer || inner.startsWith(`${outer}/`);
  return fields.find((f) => lies(pointer, f.dataset.pointer)) ?? fields.find((f) => lies(f.dataset.pointer, pointer));
}

function mark(form, { pointer, detail, allowed, example }) {
  const path = pointer.replace(/^#/, "");
  const field = fieldAt(form, path);
  if (!field) return false;
  const [, place, inside] = path.match(/^\/problems\/(\d+)(.*)/) ?? [];
  const where = place === undefined ? "" : `line ${Number(place) + 1}${inside && `, ${inside.slice(1).replaceAll("/", ".")}`}: `;
  const note = document.createElement("p");
  note.className = "error field-error";
  note.id = `error-${field.id}`;
  note.textContent = `✗ ${where}${detail}${allowed ? ` Allowed: ${allowed}.` : ""}${example ? ` Example: ${example}` : ""}`;
  field.after(note);
  field.setAttribute("aria-invalid", "true");
  field.dataset.described ??= field.getAttribute("aria-describedby") ?? "";
  field.setAttribute("aria-describedby", `${note.id} ${field.dataset.described}`.trim());
  return true;
}

function unmark(form) {
  form.querySelectorAll(".field-error").forEach((note) => note.remove());
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.setAttribute("aria-describedby", field.dataset.described);
  }
}

document.getElementById("new-schedule")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target, button = form.querySelector("button");
  unmark(form);
  button.disabled = true;
  const { ok, body } = await call("POST", "/v1/schedules", request(form));
  button.disabled = false;
  const unplaced = ok ? [] : (body.errors ?? []).filter((error) => !mark(form, error));
  const said = body.errors ? unplaced.map((error) => error.detail).join(" ") : body.detail;
  document.getElementById("form-error").textContent = ok ? "" : said || "";
  if (!ok) { form.querySelector("[aria-invalid]")?.focus(); return; }
  form.reset();
  await refresh("schedules");
  tell(`Created ${body.name}.`);
  document.getElementById(`schedule-${body.id}`)?.scrollIntoView({ block: "nearest" });
});
