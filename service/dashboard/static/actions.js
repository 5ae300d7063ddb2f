// Buttons and forms that change something: htmx calls the API, whose bodies and refusals are JSON.

const tell = (text, path) => {
  const place = document.getElementById("action-result");
  place.textContent = text;
  if (!path) return;
  const link = document.createElement("a");
  link.href = path;
  link.textContent = "Show it";
  place.append(" ", link);
};

/** `linear m=256,n=100,k=784 float32 activation=relu`: whole numbers are axes, as are ranges like 1..64; other pairs are options. */
function problem(line) {
  const [kernel, ...words] = line.trim().split(/\s+/);
  const made = { kernel, shape: {}, options: {} };
  for (const pair of words.flatMap((word) => word.split(",")).filter(Boolean)) {
    const [name, value] = pair.split("=", 2);
    if (value === undefined) made.dtype = name;
    else if (/^-?\d+$/.test(value)) made.shape[name] = Number(value);
    else if (/^\d+\.\.\d+$/.test(value)) made.shape[name] = value;
    else made.options[name] = { true: true, false: false }[value] ?? value;
  }
  return made;
}

function budget(fields) {
  const said = ["trials", "seconds", "target_ms"].filter((name) => fields[name]?.value);
  return Object.fromEntries(said.map((name) => [name, Number(fields[name].value)]));
}

const FORMS = {
  schedule(form) {
    const { name, cron, time_zone, target, device_model, overlap, device, compiler, kernel } = Object.fromEntries(new FormData(form));
    const made = { name, cron, time_zone, target, device_model, overlap, budget: budget(form), priority: Number(form.priority.value), enabled: form.enabled.checked };
    if (device) made.device = device;
    if (compiler) made.compiler = compiler;
    if (target !== "problems") return { ...made, top: Number(form.top.value), ...(kernel && { kernel }) };
    const variants = form.variants.value.split(/[\s,]+/).filter(Boolean);
    made.problems = form.problems.value.split("\n").filter((line) => line.trim()).map(problem);
    return variants.length ? { ...made, variants } : made;
  },
  note: (form) => ({ text: form.text.value, acknowledges: "acknowledges" in form.dataset }),
  view: (form) => ({ name: form.elements.name.value.trim(), address: form.address.value.trim() }),
  budget(form) {
    return { budget: budget(form), priority: Number(form.priority.value) };
  },
};

/** What an element sends: a form's fields, or its own words, with those of the form that it belongs to. */
function body(element) {
  const form = element.form ?? element;
  const said = form.dataset?.body in FORMS ? FORMS[form.dataset.body](form) : {};
  const own = element.dataset.problem ? JSON.parse(element.dataset.problem) : {};
  return form.dataset?.body || element.dataset.problem ? JSON.stringify({ ...said, ...own }) : null;
}

document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => {
  const { request, sourceElement } = ctx;
  if (request.method === "GET") return;
  request.body = body(sourceElement);
  const asked = [...(sourceElement.elements ?? [])].filter((field) => "query" in field.dataset);
  if (asked.length) request.action += `?${new URLSearchParams(asked.map(({ name, value }) => [name, value]))}`;
  request.headers.Accept = "application/json";
  if (request.body === null) delete request.headers["Content-Type"];
  else request.headers["Content-Type"] = "application/json";
  unmark(sourceElement.form ?? sourceElement);
});

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
  const before = form.querySelectorAll(`[id^="error-${field.id}"]`).length;
  note.id = `error-${field.id}${before ? `-${before}` : ""}`;
  note.textContent = `✗ ${where}${detail}${allowed ? ` Allowed: ${allowed}.` : ""}${example ? ` Example: ${example}` : ""}`;
  field.after(note);
  field.setAttribute("aria-invalid", "true");
  field.dataset.described ??= field.getAttribute("aria-describedby") ?? "";
  field.setAttribute("aria-describedby", `${note.id} ${field.getAttribute("aria-describedby") ?? ""}`.trim());
  return true;
}

function unmark(form) {
  form.querySelectorAll(".field-error").forEach((note) => note.remove());
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.setAttribute("aria-describedby", field.dataset.described);
  }
}

/** Refusals go beside their fields; what belongs to none is said in one place. */
function refuse(element, said) {
  const form = element.form ?? element;
  const unplaced = (said.errors ?? []).toReversed().filter((error) => !mark(form, error)); // each goes above those before
  const rest = said.errors ? unplaced.map((error) => error.detail).join(" ") : said.detail;
  const place = form.querySelector("[role=alert]");
  if (place) place.textContent = rest || "";
  else if (rest) tell(rest);
  form.querySelector("[aria-invalid]")?.focus();
}

/** What became of each problem of the demand that was to be tuned. */
function counted(items) {
  const count = (is, text) => { const found = items.filter(is).length; return found ? [`${found} ${text}`] : []; };
  const refused = items.filter((item) => item.refused).map((item) => `${item.problem.kernel}: ${item.refused}`);
  return [
    ...count((item) => item.is_new, "queued"),
    ...count((item) => item.job_id && !item.is_new, "already open"),
    ...count((item) => item.refused, `refused (${[...new Set(refused)].join(" ")})`),
  ].join(", ") || "No requested problems";
}

/** The body of an answer; one that is not ours (a proxy's page) says only how it ended. */
function spoken({ text, response }) {
  try { return text ? JSON.parse(text) : {}; } catch { return { detail: `The server sent an unexpected answer (status ${response.status}).` }; }
}

document.addEventListener("htmx:after:request", ({ detail: { ctx } }) => {
  const { sourceElement: element, request, response } = ctx;
  if (request.method === "GET") return;
  const said = spoken(ctx);
  if (response.status >= 400) {
    refuse(element, said);
  } else if (element.dataset.then) {
    location.assign(element.dataset.then.replace("{id}", said.id));
    return;
  } else {
    tell(element.dataset.done || (said.items ? `${counted(said.items)}.` : ""), said.id && element.dataset.path?.replace("{id}", said.id));
    if (element.matches("form.note")) element.reset();
    if (request.method === "DELETE") document.getElementById("action-result").focus(); // what had the focus goes
  }
  for (const section of document.querySelectorAll("[hx-select]")) htmx.trigger(section, "refresh", {}, false);
});

document.addEventListener("htmx:error", ({ detail: { ctx } }) => {
  if (ctx && ctx.request.method !== "GET") refuse(ctx.sourceElement, { detail: "The server did not answer; the change may not have been made." });
});
