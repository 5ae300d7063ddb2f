// Puts the time of the browser's zone beside that in UTC: in every title, and in the text where the exact time is shown.

const local = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" }); // like ISO 8601
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function tell(element) {
  if (element.dataset.told === element.dateTime) return;
  element.dataset.told = element.dateTime;
  const here = `${local.format(new Date(element.dateTime))} ${zone}`;
  if (element.hasAttribute("title")) element.title = `${element.title.split(" · ")[0]} · ${here}`;
  if ("local" in element.dataset) element.replaceChildren(`${element.textContent.split(" · ")[0]} · `, document.createElement("wbr"), here);
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
