"""The real application on a loopback port, seen by Chromium. A page that complains fails its test."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

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


_browser = pytest.StashKey[tuple[ExitStack, Any]]()


@pytest.fixture
def chromium(request: pytest.FixtureRequest) -> Any:
    """A browser, that of the test before where that had one; a skipped test where none is installed."""
    stash = request.config.stash
    if _browser not in stash:
        stash[_browser] = _started()
    return stash[_browser][1]


def _started() -> tuple[ExitStack, Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    installed = map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))  # the first is the quickest
    executable = os.environ.get("CHROMIUM") or next(filter(None, installed), None)
    if executable is None:
        if os.environ.get("TILEWRIGHT_BROWSER_REQUIRED"):
            pytest.fail("TILEWRIGHT_BROWSER_REQUIRED is set and there is no Chromium")
        pytest.skip("no Chromium: install it, or name it in CHROMIUM")
    with ExitStack() as opened:
        running = opened.enter_context(playwright.sync_playwright())
        browser = running.chromium.launch(executable_path=executable, args=[*FLAGS, *SANDBOX])
        opened.callback(browser.close)
        return opened.pop_all(), browser


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Not kept for other tests: Playwright's event loop runs as long as it does, and they start their own."""
    if _browser in item.config.stash and (nextitem is None or nextitem.get_closest_marker("browser") is None):
        item.config.stash[_browser][0].close()
        del item.config.stash[_browser]


@pytest.fixture
def address(configured: str) -> Iterator[str]:
    """Where the application answers, on a database of the test's own."""
    with serving() as address:
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
def site(site_database: tuple[str, int, int]) -> Iterator[Site]:
    """Those measurements behind the application. For one test: the next one may choose another database."""
    database, on_cpu, imported = site_database
    store_session.configure(database)
    with serving() as address:
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
def open_tab(chromium, address: str) -> Iterator[Callable]:
    """Opens tabs on a database of the test's own; see `tabs`."""
    with tabs(chromium, address) as open_tab:
        yield open_tab


@pytest.fixture
def tabs_at(chromium) -> Callable:
    """The same at another address than the application's own, such as that of a proxy."""
    return partial(tabs, chromium)


@pytest.fixture
def visit(chromium, site: Site) -> Iterator[Callable]:
    """Opens tabs on the measurements of all tests; see `tabs`."""
    with tabs(chromium, site.address) as open_tab:
        yield open_tab


@contextmanager
def tabs(chromium, address: str, *leads_to: str) -> Iterator[Callable]:
    """Opens tabs; none may log an error, break the policy, fail to load something or ask another host than these."""
    complaints: list[str] = []
    contexts = []

    def open_tab(path: str = "/", *, width: int = 1280, **of):
        context = chromium.new_context(base_url=address, viewport={"width": width, "height": 900}, **of)
        context.set_default_timeout(1000 * PATIENCE_S)
        contexts.append(context)
        tab = context.new_page()
        tab.expected = set()  # statuses that the test provokes
        tab.on("console", lambda said: note(tab, said))
        tab.on("pageerror", lambda error: complaints.append(f"exception: {error.stack or error}"))
        tab.on("request", note_stranger)
        tab.on("requestfailed", note_failure)
        tab.goto(path)
        return tab

    def note(tab, said):
        if said.type in {"error", "warning"} and not any(f"status of {status}" in said.text for status in tab.expected):
            complaints.append(f"{said.type}: {said.text}")

    def note_stranger(asked):
        if not asked.url.startswith((address, *leads_to, "data:", "blob:")):
            complaints.append(f"asked another host: {asked.url}")

    def note_failure(failed):
        # A stream that its own page closes, and what a page that is left was fetching, count as aborted.
        if failed.failure != "net::ERR_ABORTED":
            complaints.append(f"{failed.failure}: {failed.url}")

    yield open_tab
    for context in contexts:
        context.close()
    assert not complaints
