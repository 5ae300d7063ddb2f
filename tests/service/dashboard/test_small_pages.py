"""Access and the guide, and what others wrote, here as they published it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from caller import Caller

from tilewright.service import dashboard
from tilewright.service.app import create_app
from tilewright.service.dashboard import STATIC
from tilewright.service.dashboard.rendering import HELP, help_path
from tilewright.service.operations.caller import Scope
from tilewright.service.store import models


def test_keys_imports_and_changes_are_shown_to_an_admin(commit, as_key):
    def make(rows):
        job = rows.job(*rows.study()[1:])
        job.sampler, job.trials_done = "import", 12
        recorded = models.AuditEntry(actor="key ci", action="POST /v1/jobs", changed={"tuning_jobs": 1})
        rows.session.add(recorded)

    commit(make)
    shown = as_key(Scope.ADMIN, "/access").text
    assert "Queued seconds" in shown
    for words in ("k-admin", "✓ in force", "gemm m=256,n=100,k=784 float32", "POST /v1/jobs", "1 in tuning jobs"):
        assert words in shown, words


def test_others_are_told_which_scope_it_takes(as_key):
    shown = as_key(Scope.TUNE, "/access").text
    assert "with a key of the scope admin" in shown
    assert "in force" not in shown


def test_the_header_says_who_is_signed_in_with_which_scope(as_key, page):
    assert "k-read, scope read" in as_key(Scope.READ, "/jobs").text


def test_without_keys_nobody_is_said_to_be_signed_in(page):
    assert "signed-in" not in page("/jobs")


def test_pages_are_linked_in_five_groups(page):
    shown = page("/jobs").split("<nav")[1].split("</nav>")[0]
    assert shown.count('role="group"') == 5


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


FOLDERS = [STATIC / "vendor", Path(__file__).parents[2] / "browser" / "vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_every_vendored_file_is_the_published_one(folder):
    listed = {entry["file"]: entry for package in read(folder) for entry in package["files"]}
    present = {file.name for file in folder.iterdir()} - {"VENDORED.json"}
    assert present == set(listed)
    for name, entry in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_every_vendored_package_has_version_and_licence(folder):
    for package in read(folder):
        assert package["version"]
        assert any("LICENSE" in entry["source"] for entry in package["files"]), package["package"]


def read(folder):
    return json.loads((folder / "VENDORED.json").read_text(encoding="utf-8"))
