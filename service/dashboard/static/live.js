// Keeps sections of a page up to date. An element with `data-source` is fetched from there again and swapped by its id:
// at every event of the stream `data-events`, or each `data-every` seconds while the page is seen.

const AT_MOST_EVERY_MS = 300;
const fetching = new Set(), askedAgain = new Set(), streams = new Map();

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (text) => { document.getElementById("connection").textContent = text; };

/** Fetches the section of that id and swaps it; calls during a fetch become one more fetch after it. */
export async function refresh(id) {
  if (fetching.has(id)) { askedAgain.add(id); return; }
  fetching.add(id);
  try {
    const answer = await fetch(document.getElementById(id).dataset.source);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById(id);
    if (!answer.ok || !fresh) throw new Error(`status ${answer.status}`);
    swap(document.getElementById(id), fresh);
    say(streams.has(id) ? "● live" : "");
  } catch (error) {
    say(`No answer (${error.message}); what is shown may be old.`);
  }
  await pause(AT_MOST_EVERY_MS);
  fetching.delete(id);
  if (askedAgain.delete(id)) refresh(id);
}

/** Puts the new section in the old one's place; what was unfolded and focused stays so. */
function swap(old, fresh) {
  for (const open of old.querySelectorAll("details[open][id]")) {
    fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  }
  if (old.isEqualNode(fresh) || (fresh.dataset.version && old.dataset.version === fresh.dataset.version)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = [...old.querySelectorAll(".wide")].map((wide) => wide.scrollLeft);
  old.replaceWith(fresh);
  document.dispatchEvent(new CustomEvent("swapped", { detail: fresh }));
  fresh.querySelectorAll(".wide").forEach((wide, place) => { wide.scrollLeft = scrolled[place] ?? 0; });
  if (focused) document.getElementById(focused)?.focus();
  if (!fresh.dataset.events) unfollow(fresh.id);
}

function follow(id, address) {
  const stream = new EventSource(address);
  streams.set(id, stream);
  stream.onopen = () => say("● live");
  stream.addEventListener("trial", () => refresh(id));
  stream.addEventListener("state", () => refresh(id));
  stream.onerror = () => {
    say("Connecting again…");
    if (stream.readyState === EventSource.CLOSED) { unfollow(id); repeat(id); }
  };
}

function unfollow(id) {
  streams.get(id)?.close();
  if (streams.delete(id)) say("");
}

/** Refreshes until the section wants no more; it says itself how often, so that it may change with what it shows. */
async function repeat(id) {
  for (;;) {
    const { every, events } = document.getElementById(id).dataset;
    if (!every && !events) return;
    await pause(1000 * (every ?? 2));
    if (!document.hidden) await refresh(id);
  }
}

/** Follows what is open while the page is seen: a browser has six connections to a server, for all its tabs. */
function attend() {
  for (const { id, dataset } of document.querySelectorAll("[data-events]")) {
    if (document.hidden) unfollow(id);
    else if (!streams.has(id)) follow(id, dataset.events);
  }
}

document.addEventListener("visibilitychange", attend);
attend();
for (const section of document.querySelectorAll("[data-every]")) repeat(section.id);
