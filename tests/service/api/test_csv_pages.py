"""Lists as CSV: whole, or a page at a time."""

import csv
import io

import pytest
from factories import Rows

from tilewright.service.api import csv_pages
from tilewright.service.operations.transaction import transaction


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
