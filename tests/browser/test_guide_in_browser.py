"""The documentation as a site, under the content policy of the service."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import serving

from tilewright.service import dashboard
from tilewright.service.app import create_app

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]


@pytest.fixture
def guide(tmp_path):
    """The site, built as strictly as `make docs` builds it."""
    out = tmp_path / "guide"
    built = subprocess.run(
        [*(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"), *("-d", str(out / ".trees")), "docs", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    shutil.rmtree(out / ".trees")
    return out


@pytest.fixture
def reader(guide, configured, chromium, listening, monkeypatch):
    """A page at the site, and what the browser complained of."""
    monkeypatch.setattr(dashboard, "GUIDE", guide)
    complaints = []
    with serving(listening, create_app) as address:  # what lies at /guide is a route of its own
        page = chromium.new_page(color_scheme="dark")
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/guide")
        yield page, complaints
        page.close()


@pytest.mark.in_turn(4)  # building the site takes 20 s of CPU time
def test_the_site_is_read_and_searched_under_the_policy_and_the_dashboard_leads_to_it(reader, expect):
    page, complaints = reader
    expect(page.locator("h1")).to_contain_text("Tilewright")
    for caption in ("Ask", "Tune", "Bring a kernel", "PyTorch", "Operate", "Reference"):
        expect(page.locator(".sidebar-tree .caption", has_text=caption).first).to_be_visible()
    page.locator(".sidebar-tree a", has_text="Quick start").click()
    expect(page.locator("h1")).to_contain_text("Quick start")
    page.locator(".sidebar-search").fill("webhook")
    page.locator(".sidebar-search").press("Enter")
    expect(page.locator("#search-results li").first).to_be_visible()
    page.locator("#search-results a", has_text="Operating").first.click()
    expect(page.locator("h1")).to_contain_text("Operating")
    page.goto(page.url.partition("/guide")[0] + "/guide/python.html")
    expect(page.locator("dt", has_text="best").first).to_be_visible()

    page.goto(page.url.partition("/guide")[0] + "/kernels")
    page.get_by_role("link", name="Guide").click()
    expect(page).to_have_url(page.url.partition("/guide")[0] + "/guide/kernels.html")
    assert complaints == []
