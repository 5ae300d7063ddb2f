// Exchanges a key for a session, and ends one; the key goes into one request and is kept nowhere.

const form = document.getElementById("sign-in");
const result = document.getElementById("sign-in-result");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  result.textContent = "";
  try {
    const answer = await fetch("/v1/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key: form.key.value.trim() }),
    });
    if (answer.ok) {
      location.assign(form.dataset.next);
      return;
    }
    result.textContent = (await answer.json()).detail;
  } catch {
    result.textContent = "The server did not answer; try again.";
  }
  button.disabled = false;
});

document.getElementById("sign-out")?.addEventListener("click", async () => {
  try {
    const answer = await fetch("/v1/session", { method: "DELETE" });
    if (answer.ok) { location.assign("/sign-in"); return; }
    result.textContent = (await answer.json()).detail;
  } catch {
    result.textContent = "The server did not answer; you are still signed in.";
  }
});
