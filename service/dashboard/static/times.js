// Puts the time of the browser's zone beside that in UTC: in every title, and in the text where the exact time is shown.
// Ages grow while a page is open, also on pages that ask for nothing any more.

const EVERY_MS = 10_000;
const AGES = [[60, 1, "s"], [3600, 60, "min"], [2 * 86400, 3600, "h"], [Infinity, 86400, "days"]]; // as formatting.age

const local = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" }); // like ISO 8601
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function tell(element) {
  if (element.dataset.told === element.dateTime) return;
  element.dataset.told = element.dateTime;
  const here = `${local.format(new Date(element.dateTime))} ${zone}`;
  if (element.hasAttribute("title")) element.title = `${element.title.split(" · ")[0]} · ${here}`;
  if ("local" in element.dataset) element.replaceChildren(`${element.textContent.split(" · ")[0]} · `, document.createElement("wbr"), here);
}

function grow() {
  for (const element of document.querySelectorAll("time[data-age]")) {
    const seconds = (Date.now() - new Date(element.dateTime)) / 1000;
    const [, unit_s, name] = AGES.find(([bound]) => Math.abs(seconds) < bound);
    const length = `${Math.floor(Math.abs(seconds) / unit_s)} ${name}`;
    const text = seconds >= 0 ? `${length} ago` : `in ${length}`;
    if (element.textContent !== text) element.textContent = text;
  }
}

function tellAll() {
  if (zone !== "UTC") document.querySelectorAll("time[datetime]").forEach(tell);
}

// A refreshed section comes with the server's words again.
document.addEventListener("htmx:after:swap", () => {
  document.querySelectorAll("time[data-told]").forEach((element) => delete element.dataset.told);
  tellAll();
});
tellAll();
setInterval(grow, EVERY_MS);
