// A button beside every command and program that copies it; where the browser admits no copying (a server that is not
// this machine's, without TLS) it selects the text instead.

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

for (const code of document.querySelectorAll("main pre > code")) {
  const box = document.createElement("div");
  const button = document.createElement("button");
  box.className = "copyable";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", () => copy(button, code));
  const text = code.parentElement;
  text.replaceWith(box);
  box.append(text, button);
}
