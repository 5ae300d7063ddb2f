// The buttons beside commands and programs copy them; where the browser admits no copying (a server that is not this
// machine's, without TLS) they select the text instead.

const SAID_MS = 2000;

async function copy(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, SAID_MS);
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest(".copyable > button");
  if (button) copy(button, button.parentElement.querySelector("code"));
});

// The server sends them hidden, as without this script they would do nothing. A section that is refreshed sends them so
// again: what shows them stands outside of it, so that none loses the focus.
document.documentElement.classList.add("copies");
