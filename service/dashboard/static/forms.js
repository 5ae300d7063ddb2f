// After Back or a reload, browsers put into a form what was chosen before; it says what is in force instead.

addEventListener("pageshow", ({ persisted }) => {
  const isFirst = performance.getEntriesByType("navigation")[0]?.type === "navigate";
  if (persisted || !isFirst) document.querySelectorAll("form[method=get]").forEach((form) => form.reset());
});
