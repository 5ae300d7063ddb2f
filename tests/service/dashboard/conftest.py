"""The application on a real database that is emptied between tests, called as a browser would."""

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from tilewright.service.app import create_app
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Base
from tilewright.service.store.session import sqlalchemy_url

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from caller import Caller
from factories import Rows


@pytest.fixture(scope="session")
def pages_database(postgres_url: str, template: str) -> str:
    """One migrated database for all tests of this process that open pages."""
    name = f"pages_{uuid.uuid4().hex[:12]}"
    admin = create_engine(sqlalchemy_url(postgres_url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    return make_url(postgres_url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def client(pages_database: str) -> Iterator[Caller]:
    """A client of a fresh application on an empty database; without the lifespan, so without maintenance."""
    store_session.configure(pages_database)
    yield Caller(create_app())
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    with transaction() as session:
        session.execute(text(f"TRUNCATE {tables}, procrastinate_jobs RESTART IDENTITY CASCADE"))
    store_session.configure(None)


@pytest.fixture
def page(client: Caller) -> Callable[..., str]:
    """The text of a page, which must answer with HTML and the expected status."""

    def page(path: str = "/", status: int = 200) -> str:
        response = client.get(path)
        assert response.status_code == status, response.text
        assert response.headers["content-type"].startswith("text/html")
        return response.text

    return page


@pytest.fixture
def commit(client: Caller) -> Callable:
    """What a function makes of rows, committed."""

    def commit(make):
        with transaction() as session:
            return make(Rows(session))

    return commit


@pytest.fixture
def as_key(client, commit, monkeypatch):
    """Opens pages with a key of a scope, on a server that demands keys."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    client.app = create_app()

    def as_key(scope: Scope, path: str):
        made = commit(lambda rows: keys.create_key(rows.session, KeyRequest(name=f"k-{scope}", scope=scope)))
        return client.get(path, headers={"Authorization": f"Bearer {made.token}"})

    yield as_key
    monkeypatch.undo()
    settings.cache_clear()
