"""Export, import and bundles over HTTP: streamed, limited, refused with problem documents."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from base64 import b64decode

import emptying
import pytest
from caller import Caller, new_app
from factories import H200, SHAPE, Rows
from sqlalchemy import select

from tilewright.service.api import csv_pages
from tilewright.service.api.routes import exchange
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def stored(client) -> Caller:
    """A client of an application whose database has two results, verified."""
    with transaction() as session:
        rows = Rows(session)
        for m, time_ms in ((256, 0.5), (512, 1.0)):
            best = rows.best(SHAPE | {"m": m}, time_ms)
            best.bound_ratio = rows.trial_of(best).bound_ratio = 0.5
    return client


@pytest.fixture
def document(stored, api_engine, registered_kernels) -> bytes:
    """What it exports; the database is empty again."""
    body = stored.get("/v1/export").content
    emptying.empty(api_engine, registered_kernels)
    return body


def send(client, body: bytes, query: str = "") -> dict:
    return client.post(f"/v1/import{query}", content=body, headers=JSON)


def problem(response, status: int, kind: str) -> dict:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert found["type"] == f"/problems/{kind}"
    assert "Traceback" not in response.text
    return found


def test_what_one_installation_exports_another_imports_and_serves(client, document):
    answer = send(client, document, "?origin=lab-7")
    assert answer.status_code == 200
    assert (answer.json()["best"], answer.json()["skipped"]) == (2, 0)
    assert answer.json()["sha256"] == hashlib.sha256(document).hexdigest()
    path = f"/v1/kernels/gemm/best?device_model={H200.slug}&shape=m=256,n=100,k=784"
    best = client.get(path).json()
    assert (best["match"], best["time_ms"], best["environment"]["origin"]) == ("exact", 0.5, "lab-7")
    assert client.get("/v1/jobs").json()["items"][0]["result"]["imported"]["origin"] == "lab-7"


def test_a_page_of_the_dashboard_shows_an_imported_job(client, document):
    send(client, document)
    job_id = client.get("/v1/jobs").json()["items"][0]["id"]
    assert client.get(f"/jobs/{job_id}").status_code == 200
    assert [client.get(path).status_code for path in ("/", "/results")] == [200, 200]


def test_a_dry_run_stores_nothing_and_leaves_no_record_of_a_change(client, document):
    assert send(client, document, "?dry_run=true").json()["best"] == 2
    with transaction() as session:
        for table in (models.Study, models.BestConfiguration, models.DeviceModel, models.AuditEntry):
            assert session.scalars(select(table)).all() == []


def test_an_import_is_recorded_as_one_change(client, document):
    send(client, document)
    with transaction() as session:
        (entry,) = session.scalars(select(models.AuditEntry)).all()
    assert entry.action == "POST /v1/import"
    assert {"best_configurations", "trials", "studies", "tuning_jobs"} <= entry.changed.keys()


def test_an_export_is_streamed_and_not_cached(stored):
    answer = stored.get("/v1/export?trials=true&kernel=gemm")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert "content-length" not in answer.headers
    assert len(answer.json()["studies"]) == 2


def test_pages_of_an_export_follow_one_another(stored):
    first = stored.get("/v1/export?limit=1").json()
    second = stored.get(f"/v1/export?limit=1&cursor={first['next_cursor']}").json()
    assert [page["studies"][0]["problem"]["shape"]["m"] for page in (first, second)] == [256, 512]
    assert second["next_cursor"] is None


@pytest.mark.parametrize("kind", ["t4", "kernel-tuner"])
def test_one_study_is_exported_for_other_tools(stored, kind):
    study_id = stored.get("/v1/studies").json()["items"][0]["id"]
    found = stored.get(f"/v1/export?format={kind}&study_id={study_id}").json()
    assert len(found["results" if kind == "t4" else "cache"]) == 1


@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("format=t4", 422, "invalid-request"),
        ("study_id=1", 422, "invalid-request"),
        ("format=t4&study_id=999999", 404, "not-found"),
        ("format=xml", 422, "invalid-request"),
        ("limit=0", 422, "invalid-request"),
        ("limit=20001", 422, "invalid-request"),
        ("cursor=!!", 422, "invalid-request"),
        ("unknown=1", 422, "invalid-request"),
    ],
)
def test_an_export_that_cannot_be_is_refused_before_it_begins(stored, query, status, kind):
    problem(stored.get(f"/v1/export?{query}"), status, kind)


def test_only_so_many_exports_go_on_at_a_time(stored, monkeypatch):
    monkeypatch.setattr(exchange, "MOST_EXPORTS", 0)
    refused = stored.get("/v1/export")
    problem(refused, 503, "too-many-streams")
    assert refused.headers["retry-after"]
    monkeypatch.undo()
    assert stored.get("/v1/export").status_code == 200
    assert exchange._Running.count == 0


@pytest.mark.parametrize(
    ("body", "query", "status", "kind"),
    [
        (b"", "", 422, "invalid-request"),
        (b"{", "", 400, "malformed-json"),
        (b"[]", "", 422, "invalid-request"),
        (b'{"a": NaN}', "", 400, "malformed-json"),
        (b'{"a": 1, "a": 1}', "", 422, "invalid-request"),
        (b'{"format": "tilewright/9"}', "", 422, "invalid-request"),
        (b"{}", "", 422, "invalid-request"),
        (b"{}", "?origin=../x", 422, "invalid-request"),
        (b"{}", "?shape=nonsense", 422, "invalid-request"),
        (b"{}", "?rename=a", 422, "invalid-request"),
        (b"{}", "?rename=a=true", 422, "invalid-request"),
        (b"{}", "?device_model=../../etc", 422, "invalid-request"),
        (b"{}", "?unknown=1", 422, "invalid-request"),
        (b'{"cache": {}, "tune_params_keys": []}', "?kernel=gemm&shape=m=0,n=1,k=1", 422, "invalid-request"),
    ],
)
def test_a_bad_import_is_a_problem_document_and_stores_nothing(client, body, query, status, kind):
    found = problem(send(client, body, query), status, kind)
    assert found["detail"]
    with transaction() as session:
        assert session.scalars(select(models.AuditEntry)).all() == []


def test_the_place_of_a_wrong_field_is_a_pointer_into_the_document(client, document):
    spoiled = json.loads(document)
    spoiled["studies"][1]["best"]["ties"] = -1
    found = problem(send(client, json.dumps(spoiled).encode()), 422, "invalid-request")
    assert found["errors"][0]["pointer"] == "#/studies/1/best/ties"


def test_an_import_may_be_larger_than_other_bodies_up_to_its_own_limit(client, document, monkeypatch):
    body = document + b" " * settings().max_body_bytes
    assert send(client, body).json()["best"] == 2
    problem(client.post("/v1/jobs", content=body, headers=JSON), 413, "too-large")
    monkeypatch.setenv("TILEWRIGHT_MAX_IMPORT_BYTES", str(len(body) - 1))
    settings.cache_clear()
    problem(send(Caller(new_app()), body), 413, "too-large")
    monkeypatch.undo()
    settings.cache_clear()


def test_an_import_needs_the_admin_scope_and_an_export_does_not(client, document, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    app = Caller(new_app(), peer=("192.0.2.7", 50000))
    with transaction() as session:
        tokens = {scope: keys.create_key(session, KeyRequest(name=scope, scope=scope)).token for scope in Scope}
    for scope, token in tokens.items():
        of = {"Authorization": f"Bearer {token}"}
        sent = app.post("/v1/import", content=document, headers=JSON | of)
        assert sent.status_code == (200 if scope is Scope.ADMIN else 403)
        assert app.get("/v1/export", headers=of).status_code == 200
        assert app.get("/v1/bundle", headers=of).status_code == (200 if scope is Scope.ADMIN else 422)
    assert app.get("/v1/export").status_code == 401
    monkeypatch.undo()
    settings.cache_clear()


def test_a_bundle_says_its_digest_and_is_sent_again_only_when_it_changed(stored):
    answer = stored.get(f"/v1/bundle?device_model={H200.slug}")
    digest = answer.headers["repr-digest"].removeprefix("sha-256=:").removesuffix(":")
    assert b64decode(digest) == hashlib.sha256(answer.content).digest()
    assert len(answer.json()["results"]) == 2
    again = stored.get(f"/v1/bundle?device_model={H200.slug}", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    with transaction() as session:
        Rows(session).best(SHAPE | {"m": 1024}, 2.0)
    changed = stored.get(f"/v1/bundle?device_model={H200.slug}", headers={"If-None-Match": answer.headers["etag"]})
    assert (changed.status_code, len(changed.json()["results"])) == (200, 3)


def test_a_bundle_of_nothing_known_is_refused(client):
    problem(client.get("/v1/bundle?device_model=nosuch"), 404, "not-found")
    problem(client.get("/v1/bundle"), 422, "invalid-request")


@pytest.fixture
def five_results():
    """Four of gemm, and before them one of a kernel with other axes."""
    with transaction() as session:
        rows = Rows(session)
        rows.best({"m": 77, "n": 88}, kernel="gemv")
        for m in range(1, 5):
            rows.best({"m": m, "n": 8, "k": 8})


@pytest.mark.parametrize("spooled_bytes", [1, 2**20])  # in a file, in memory
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/results", "/v1/studies"])
def test_csv_without_a_limit_has_every_row_and_every_column(client, five_results, monkeypatch, path, spooled_bytes):
    monkeypatch.setattr(csv_pages, "READ_AT_ONCE", 2)
    monkeypatch.setattr(csv_pages, "SPOOLED_BYTES", spooled_bytes)
    response = client.get(f"{path}?format=csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [row["problem.shape.m"] for row in rows] == ["4", "3", "2", "1", "77"]
    assert [row["problem.shape.k"] for row in rows] == ["8", "8", "8", "8", ""]
    assert "link" not in response.headers
    assert response.headers["content-type"].startswith("text/csv")


def test_csv_with_a_limit_is_one_page_with_a_link_to_the_next(client, five_results):
    first = client.get("/v1/jobs?format=csv&limit=3")
    assert first.text.count("\r\n") == 4
    following = first.headers["link"].partition(">")[0].removeprefix("<")
    assert client.get(following).text.count("\r\n") == 3


def test_a_refused_filter_is_a_problem_document_also_as_csv(client):
    assert client.get("/v1/results?format=csv&select=TILE_M").status_code == 422
