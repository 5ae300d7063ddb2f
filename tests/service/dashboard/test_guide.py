"""The documentation at /guide, built and not built."""

import re
from pathlib import Path

import pytest
from caller import Caller

from tilewright.service import dashboard
from tilewright.service.app import create_app
from tilewright.service.dashboard.rendering import HELP, help_path

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A site of two pages in place of the one that `make docs` builds."""
    monkeypatch.setattr(dashboard, "GUIDE", tmp_path)
    (tmp_path / "index.html").write_text("<h1>Start</h1>")
    (tmp_path / "kernels.html").write_text("<h1>Kernels</h1>")


def test_the_guide_is_served_where_it_was_built(built):
    client = Caller(create_app())
    start = client.get("/guide", follow_redirects=False)
    assert (start.status_code, start.headers["location"]) == (307, "/guide/index.html")
    shown = client.get("/guide/kernels.html")
    assert (shown.status_code, shown.text) == (200, "<h1>Kernels</h1>")
    assert "unsafe" not in shown.headers["content-security-policy"]
    assert client.get("/guide/../router.py").status_code == 404


def test_a_guide_that_was_not_built_says_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr(dashboard, "GUIDE", tmp_path / "none")
    client = Caller(create_app())
    refused = client.get("/guide", headers={"Accept": "text/html"})
    assert refused.status_code == 404
    assert "make docs" in refused.text
    assert client.get("/guide/kernels.html").status_code == 404
    assert help_path("/kernels") == "/guide"


def test_a_page_leads_to_its_own_part_of_the_guide(built):
    assert help_path("/kernels") == "/guide/kernels.html"
    assert help_path("/fleet") == "/guide"  # this site has no page on it
    assert help_path("/nowhere") == "/guide/index.html"


@pytest.mark.parametrize("wanted", sorted(set(HELP.values())))
def test_the_guide_has_what_pages_lead_to(wanted):
    page, _, anchor = wanted.partition("#")
    text = (DOCS / page).with_suffix(".md").read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert not anchor or anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
