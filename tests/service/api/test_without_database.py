"""What the API says while the database is away, or not migrated."""

import pytest
from caller import Caller, new_app
from sqlalchemy import text

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store import schema
from tilewright.service.store import session as store_session
from tilewright.service.store.session import session_scope


@pytest.fixture
def away():
    store_session.configure("postgresql://someone:secret@127.0.0.1:9/none")
    yield Caller(new_app())
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
        response = Caller(new_app()).get("/ready")
    finally:
        store_session.configure(None)
    assert response.status_code == 503
    assert "tilewright db upgrade" in response.json()["detail"]


def test_a_database_that_takes_no_changes_is_not_ready(database_url, configured):
    assert Caller(new_app()).get("/ready").status_code == 200
    with session_scope() as session:
        name = session.scalar(text("SELECT current_database()"))
        session.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    store_session.configure(configured)  # with new connections
    response = Caller(new_app()).get("/ready")
    assert (response.status_code, response.json()["type"]) == (503, "/problems/not-ready")
    assert "takes no changes" in response.json()["detail"]


def test_tables_of_a_newer_version_are_named_so(database_url, configured):
    with session_scope() as session:
        session.execute(text("UPDATE tilewright_version SET version_num = '9999'"))
    with pytest.raises(DatabaseUnavailableError, match="newer Tilewright"):
        schema.upgrade(configured)
