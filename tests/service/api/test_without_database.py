"""What the API says while the database is away, or not migrated."""

import pytest
from caller import Caller

from tilewright.service.app import create_app
from tilewright.service.store import session as store_session


@pytest.fixture
def away():
    store_session.configure("postgresql://someone:secret@127.0.0.1:9/none")
    yield Caller(create_app())
    store_session.configure(None)


def test_calls_are_refused_as_unavailable_without_naming_the_database(away):
    response = away.get("/v1/jobs")
    assert (response.status_code, response.json()["type"]) == (503, "/problems/unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert "someone" not in response.text


def test_it_lives_but_is_not_ready(away):
    assert away.get("/health").status_code == 200
    response = away.get("/ready")
    assert (response.status_code, response.json()["type"]) == (503, "/problems/not-ready")


def test_first_page_says_so_to_people(away):
    response = away.get("/")
    assert response.status_code == 503
    assert "database does not answer" in response.text


def test_database_without_migrations_is_not_ready(empty_database_url):
    store_session.configure(empty_database_url)
    try:
        response = Caller(create_app()).get("/ready")
    finally:
        store_session.configure(None)
    assert response.status_code == 503
    assert "tilewright db upgrade" in response.json()["detail"]
