"""The real application on a loopback port, seen by Chromium. A page that complains fails its test."""

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn

from tilewright.service.app import create_app
from tilewright.service.operations.transaction import transaction

sys.path.insert(0, str(Path(__file__).parents[1] / "service" / "api"))
from factories import Rows

FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
SANDBOX = () if os.geteuid() else ("--no-sandbox",)  # root has none


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    """A browser, or a skipped test where none is installed.

    Not kept for the session: Playwright's event loop runs as long as it does, and other tests start their own.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    executable = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        if os.environ.get("TILEWRIGHT_BROWSER_REQUIRED"):
            pytest.fail("TILEWRIGHT_BROWSER_REQUIRED is set and there is no Chromium")
        pytest.skip("no Chromium: install it, or name it in CHROMIUM")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=executable, args=[*FLAGS, *SANDBOX])
        yield browser
        browser.close()


@pytest.fixture
def address(configured: str) -> Iterator[str]:
    """Where the application answers, on a database of the test's own; no maintenance, so that no schedule fires."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(), lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listener.close()
    assert not thread.is_alive()


@pytest.fixture
def commit(configured: str) -> Callable:
    """What a function makes of rows, committed."""

    def commit(make):
        with transaction() as session:
            return make(Rows(session))

    return commit


@pytest.fixture(params=[{}, {"color_scheme": "dark"}], ids=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> dict[str, str]:
    """The colours that the person prefers."""
    return request.param


@pytest.fixture
def open_tab(chromium, address: str) -> Iterator[Callable]:
    """Opens tabs; after the test none may have logged an error, broken the policy or failed to load something."""
    complaints: list[str] = []
    contexts = []

    def open_tab(path: str = "/", *, width: int = 1280, **of):
        context = chromium.new_context(base_url=address, viewport={"width": width, "height": 900}, **of)
        contexts.append(context)
        tab = context.new_page()
        tab.expected = set()  # statuses that the test provokes
        tab.on("console", lambda said: note(tab, said))
        tab.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
        tab.on("requestfailed", note_failure)
        tab.goto(path)
        return tab

    def note(tab, said):
        if said.type in {"error", "warning"} and not any(f"status of {status}" in said.text for status in tab.expected):
            complaints.append(f"{said.type}: {said.text}")

    def note_failure(failed):
        # A stream that its own page closes, and what a page that is left was fetching, count as aborted.
        if failed.failure != "net::ERR_ABORTED":
            complaints.append(f"{failed.failure}: {failed.url}")

    yield open_tab
    for context in contexts:
        context.close()
    assert not complaints
