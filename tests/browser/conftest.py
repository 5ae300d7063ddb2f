"""The real application on a loopback port, seen by Chromium. A page that complains fails its test."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urljoin

import pytest
import real_rows
from factories import Rows
from serving import serving
from waiting import PATIENCE_S

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import session as store_session

FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
SANDBOX = () if os.geteuid() else ("--no-sandbox",)  # root has none


@dataclass
class Browser:
    """A running browser, and the tab that one test after the other has: a new one takes a second of CPU time."""

    opened: ExitStack
    chromium: Any
    tab: Any = None


_browser = pytest.StashKey[Browser]()


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Browser:
    """That of the test before where that had one; a skipped test where none is installed."""
    stash = request.config.stash
    if _browser not in stash:
        stash[_browser] = _started()
    return stash[_browser]


@pytest.fixture
def chromium(browser: Browser) -> Any:
    """The browser itself, for profiles of the test's own."""
    return browser.chromium


def _started() -> Browser:
    playwright = pytest.importorskip("playwright.sync_api")
    installed = map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))  # the first is the quickest
    executable = os.environ.get("CHROMIUM") or next(filter(None, installed), None)
    if executable is None:
        if os.environ.get("TILEWRIGHT_BROWSER_REQUIRED"):
            pytest.fail("TILEWRIGHT_BROWSER_REQUIRED is set and there is no Chromium")
        pytest.skip("no Chromium: install it, or name it in CHROMIUM")
    with ExitStack() as opened:
        running = opened.enter_context(playwright.sync_playwright())
        chromium = running.chromium.launch(executable_path=executable, args=[*FLAGS, *SANDBOX])
        opened.callback(chromium.close)
        return Browser(opened.pop_all(), chromium)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Not kept for other tests: Playwright's event loop runs as long as it does, and they start their own."""
    if _browser in item.config.stash and (nextitem is None or nextitem.get_closest_marker("browser") is None):
        item.config.stash[_browser].opened.close()
        del item.config.stash[_browser]


@pytest.fixture(scope="session")
def listening() -> Iterator[socket.socket]:
    """The port at which the applications of all tests answer, one after the other, so that one tab serves them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def address(configured: str, listening: socket.socket) -> Iterator[str]:
    """Where the application answers, on a database of the test's own."""
    with serving(listening) as address:
        yield address


@dataclass(frozen=True)
class Site:
    """An application on measurements that were really made, for tests that only read; ids of studies by origin."""

    address: str
    on_cpu: int
    imported: int


@pytest.fixture(scope="session")
def site_database(new_database: Callable[[str], str]) -> tuple[str, int, int]:
    """The exported H200 results, a search recorded on a CPU, an imported recording of another tuner: filled once."""
    url = new_database("site")
    store_session.configure(url)
    with transaction() as session:
        on_cpu, imported = real_rows.fill(session)
    store_session.configure(None)
    return url, on_cpu, imported


@pytest.fixture
def site(site_database: tuple[str, int, int], listening: socket.socket) -> Iterator[Site]:
    """Those measurements behind the application. For one test: the next one may choose another database."""
    database, on_cpu, imported = site_database
    store_session.configure(database)
    with serving(listening) as address:
        yield Site(address, on_cpu, imported)
    store_session.configure(None)


@pytest.fixture
def commit(configured: str) -> Callable:
    """What a function makes of rows, committed."""

    def commit(make):
        with transaction() as session:
            return make(Rows(session))

    return commit


@pytest.fixture
def expect():
    """Playwright's assertions; they wait longer than by default, for machines that have much else to do."""
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=1000 * PATIENCE_S)
    return expect


@pytest.fixture
def kept_tab(browser: Browser, listening: socket.socket) -> Any:
    """The browser's tab at the applications' address, signed out. It has kept static files; our pages store nothing."""
    if browser.tab is None or browser.tab.is_closed():
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        browser.tab = browser.chromium.new_context(base_url=address).new_page()
    browser.tab.context.clear_cookies()
    return browser.tab


@pytest.fixture
def tabs_at(chromium) -> Callable:
    """Opens tabs at another address than the application's own, such as that of a proxy; see `tabs`."""
    return partial(tabs, chromium)


@pytest.fixture
def open_tab(kept_tab, tabs_at, address: str) -> Iterator[Callable]:
    """Opens tabs on a database of the test's own."""
    with tabs_at(address, kept=kept_tab) as open_tab:
        yield open_tab


@pytest.fixture
def visit(kept_tab, tabs_at, site: Site) -> Iterator[Callable]:
    """Opens tabs on the measurements of all tests."""
    with tabs_at(site.address, kept=kept_tab) as open_tab:
        yield open_tab


@contextmanager
def tabs(chromium, address: str, *leads_to: str, kept: Any = None) -> Iterator[Callable]:
    """Opens tabs; none may log an error, break the policy, fail to load something or ask another host than these.

    The first is the one that is kept. A tab that is to be `alone`, and one with options of a profile, gets its own.
    """
    heard = Heard((address, *leads_to, "data:", "blob:"))
    contexts: list[Any] = []
    used: list[Any] = []

    def open_tab(path: str = "/", *, width: int = 1280, color_scheme: str = "light", alone: bool = False, **of):
        if kept and not (alone or of or used):
            used.append(tab := kept)
        else:
            contexts.append(context := chromium.new_context(base_url=address, **of))
            tab = context.new_page()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=color_scheme)
        tab.set_default_timeout(1000 * PATIENCE_S)
        heard.listen(tab)
        tab.goto(urljoin(address, path))
        return tab

    yield open_tab
    for context in contexts:
        context.close()
    for tab in used:
        tab.unroute_all()
        tab.mouse.move(0, 0)
        tab.goto("about:blank")
        heard.leave(tab)
    assert not heard.complaints


class Heard:
    """What pages complain of; `hosts` are how addresses begin that they may ask for."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.complaints: list[str] = []
        self._hosts = hosts
        self._events = {
            "console": self._message,
            "pageerror": self._exception,
            "request": self._request,
            "requestfailed": self._failure,
        }

    def listen(self, tab: Any) -> None:
        """Gives the tab `expected`, for statuses that the test provokes."""
        tab.expected = set()
        for event, hear in self._events.items():
            tab.on(event, hear)

    def leave(self, tab: Any) -> None:
        """Hears it no longer."""
        for event, hear in self._events.items():
            tab.remove_listener(event, hear)

    def _message(self, said: Any) -> None:
        is_expected = any(f"status of {status}" in said.text for status in said.page.expected)
        if said.type in {"error", "warning"} and not is_expected:
            self.complaints.append(f"{said.type}: {said.text}")

    def _exception(self, error: Any) -> None:
        self.complaints.append(f"exception: {error.stack or error}")

    def _request(self, asked: Any) -> None:
        if not asked.url.startswith(self._hosts):
            self.complaints.append(f"asked another host: {asked.url}")

    def _failure(self, failed: Any) -> None:
        # A stream that its own page closes, and what a page that is left was fetching, count as aborted.
        if failed.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{failed.failure}: {failed.url}")
