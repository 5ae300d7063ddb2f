"""Access and the guide, and what others wrote, here as they published it."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from caller import Caller
from hostile import QUERIES, TEXTS
from sampling import turn

from tilewright.service import dashboard
from tilewright.service.app import create_app
from tilewright.service.dashboard import STATIC, pages
from tilewright.service.dashboard.rendering import HELP, PageRoute, help_path
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.jobs import jobs
from tilewright.service.settings import settings
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


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
JOB = "/v1/jobs/0190a000-0000-7000-8000-000000000000"


def asked(client, path, accept=BROWSER, method="GET", **more):
    return client.request(method, path, headers={"Accept": accept, **more.pop("headers", {})}, **more)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nowhere", 404, ["This address does not exist", "/nowhere"]),
        ("/<b>x</b>", 404, ["&lt;b&gt;"]),
        (JOB, 404, ["There is no job", "Use an existing name or id"]),
        ("/v1/jobs/3", 422, ["job_id", "Correct the named fields"]),
        ("/v1/kernels/gemm/best?shape=m", 422, ["shape"]),
        ("/static/nowhere.css", 404, ["This address does not exist"]),
        ("/schedules/3/edit", 404, ["There is no schedule"]),
        ("/v1/jobs/%00", 422, ["U+0000"]),
    ],
)
def test_a_browser_is_shown_a_page_and_a_program_the_document(client, path, status, words):
    shown = asked(client, path)
    assert (shown.status_code, shown.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert shown.text.count("<h1>") == 1
    assert 'href="/static/style.css?v=' in shown.text
    assert "<b>x" not in shown.text
    assert all(word in shown.text for word in words), shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert len(shown.content) == int(shown.headers["content-length"])
    if path.startswith("/schedules"):  # a page of the dashboard, whose refusals always were pages
        return
    for accept in ("*/*", "application/json", "application/problem+json, text/html;q=0.5"):
        told = asked(client, path, accept)
        assert (told.status_code, told.headers["content-type"]) == (status, "application/problem+json")
        assert told.json()["status"] == status


def test_a_method_that_is_not_taken_keeps_its_headers(client):
    shown = asked(client, "/v1/jobs", method="DELETE")
    assert (shown.status_code, shown.headers["allow"]) == (405, "GET, POST")
    assert "<h1>This address does not allow this method</h1>" in shown.text


@pytest.mark.parametrize("path", ["/", JOB])
def test_a_failure_here_is_a_page_with_the_request_id_and_no_word_of_the_error(client, monkeypatch, path):
    def broken(*_arguments, **_more):
        raise RuntimeError("secret words")

    monkeypatch.setattr(jobs, "job", broken)
    monkeypatch.setattr("tilewright.service.dashboard.pages.overview.transaction", broken)
    shown = asked(client, path, headers={"X-Request-Id": "abcdefgh1"})
    assert (shown.status_code, shown.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert re.search(r"request <code>abcdefgh1</code>", shown.text)
    assert "secret words" not in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert shown.headers["x-request-id"] == "abcdefgh1"
    told = asked(client, path, "application/json")
    assert (told.status_code, told.headers["content-type"]) == (500, "application/problem+json")


def test_what_the_guard_refuses_is_a_page_too(client):
    shown = asked(client, "/", headers={"Host": "elsewhere.example"})
    assert (shown.status_code, "<h1>The Host header names a host that is not allowed</h1>" in shown.text) == (421, True)


def test_other_answers_are_left_as_they_are(client):
    assert asked(client, "/health").json() == {"status": "ok"}
    assert settings().require_keys is False


INSIDE = ("Traceback", "sqlalchemy", "psycopg", "site-packages", "tilewright/service")
RIGHT = QUERIES | {"kernel": "gemm", "device_model": "nvidia-h200", "slug": "nvidia-h200", "schedule_id": "1"}


def page_routes() -> list[PageRoute]:
    modules = [importlib.import_module(f"{pages.__name__}.{m.name}") for m in pkgutil.iter_modules(pages.__path__)]
    routers = [module.router for module in modules if hasattr(module, "router")]
    found = {route.path: route for router in routers for route in router.routes if isinstance(route, PageRoute)}
    return list(found.values())


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("texts_of", ["sixth", pytest.param("all", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("route", page_routes(), ids=lambda route: route.path)
def test_no_address_fails_a_page_or_tells_of_the_inside(client, commit, route, texts_of):
    """A parameter gets every sixth text, its neighbours and the next commits the others; nightly each gets all."""

    def texts(place):
        first, step = turn(6, "texts")
        return TEXTS if texts_of == "all" else TEXTS[(first + place) % step :: step]

    best = commit(lambda rows: rows.trial_of(rows.best(library_ms=2.0)))
    right = RIGHT | {
        "name": "gemm",
        "job_id": str(best.job_id),
        "study_id": str(best.study_id),
        "number": "0",
        "table_id": "1",
        "variant": "naive",
    }
    named = [field.name for field in route.dependant.path_params]
    asked = {field.alias: right[field.alias] for field in route.dependant.query_params if field.alias in right}
    tried = [({}, {})]
    tried += [({name: text}, {}) for place, name in enumerate(named) for text in texts(place)]
    fields = route.dependant.query_params
    tried += [({}, {field.alias: text}) for place, field in enumerate(fields) for text in texts(place)]
    for parts, query in tried:
        path = route.path.format(**{name: quote(parts.get(name, right[name]), safe="") for name in named})
        answer = client.get(path, params=asked | query, headers={"Accept": "text/html"})
        assert answer.status_code < 500, (parts, query, answer.text)
        assert not any(word in answer.text for word in INSIDE), (parts, query)
