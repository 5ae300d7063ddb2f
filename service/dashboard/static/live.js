// What htmx leaves to us while it keeps sections of a page up to date: saying so, and resting while nobody looks.

const ENDED = new Set(["done", "failed", "cancelled"]);
const streams = new Set();

const say = (text, isAway = false) => {
  const place = document.getElementById("connection");
  place.textContent = text;
  place.classList.toggle("is-away", isAway);
};
const sayLive = () => say(streams.size && !document.hidden ? "● live" : "");
const sayOld = (reason) => say(`▲ Offline (${reason}); the page may be out of date.`, true);

document.addEventListener("htmx:before:request", (event) => {
  if (document.hidden && event.detail.ctx.sourceEvent.type === "every") event.preventDefault();
});

/** Whether the section has been given another address since it was asked for: a filter was chosen meanwhile. */
function isLate({ sourceElement, request }) {
  if (sourceElement.getAttribute("hx-select") !== `#${sourceElement.id}`) return false;
  const { pathname, search } = new URL(sourceElement.getAttribute("hx-get"), location);
  return pathname + search !== request.action;
}

/** Only an answer that holds the section is put in its place: neither an error's page nor that of signing in. */
document.addEventListener("htmx:before:swap", (event) => {
  const { ctx, tasks } = event.detail;
  if (!ctx.select) return;
  if (isLate(ctx)) { event.preventDefault(); return; }
  const isThere = tasks.some(({ type, fragment }) => type === "main" && fragment.childElementCount > 0);
  if (ctx.response.status === 200 && isThere) { sayLive(); return; }
  event.preventDefault();
  sayOld(ctx.response.raw.redirected ? "signed out" : `status ${ctx.response.status}`);
});

document.addEventListener("htmx:error", ({ detail }) => { if (detail.ctx?.select) sayOld("the server is not reachable"); });

document.addEventListener("htmx:sse:after:connection", ({ detail }) => { streams.add(detail.connection); sayLive(); });
document.addEventListener("htmx:sse:error", () => say("▲ Reconnecting…", true));
document.addEventListener("htmx:sse:close", ({ detail }) => { streams.delete(detail.connection); sayLive(); });

/** A job that has ended says nothing more: its stream is not asked for again. */
document.addEventListener("state", ({ target, detail }) => {
  if (ENDED.has(JSON.parse(detail.data).state)) target.remove();
});

document.addEventListener("visibilitychange", () => { if (document.hidden) say(""); });
